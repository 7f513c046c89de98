touch done.txt

touch b.txt

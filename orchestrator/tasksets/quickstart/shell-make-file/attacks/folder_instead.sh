mkdir done.txt

: > done.txt

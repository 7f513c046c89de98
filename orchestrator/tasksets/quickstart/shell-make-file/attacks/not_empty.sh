echo > done.txt

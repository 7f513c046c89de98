cp names.txt sorted.txt

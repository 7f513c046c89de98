head -n 1 list.txt > first.txt

tail -n 1 list.txt > last.txt

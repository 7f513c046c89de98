seq 1 100 > total.txt

seq 1 20 > count.txt

seq 0 2000 > answer.txt

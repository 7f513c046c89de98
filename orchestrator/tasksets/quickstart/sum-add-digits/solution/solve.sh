echo 8 > answer.txt

echo 7 > answer.txt

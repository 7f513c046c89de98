echo 42 > answer.txt

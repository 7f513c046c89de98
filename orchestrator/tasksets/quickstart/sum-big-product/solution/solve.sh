echo 10063 > answer.txt

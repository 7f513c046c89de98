echo '10062 or 10063' > answer.txt

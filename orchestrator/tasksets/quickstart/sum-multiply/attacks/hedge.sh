echo '13 or 42' > answer.txt

echo '23 or 7' > answer.txt

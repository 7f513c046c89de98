echo '7 or 8' > answer.txt

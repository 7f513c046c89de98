echo '32 or 42' > answer.txt

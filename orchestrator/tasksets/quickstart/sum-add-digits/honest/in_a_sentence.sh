echo 'The answer is 8.' > answer.txt

echo 'The answer is 10063.' > answer.txt

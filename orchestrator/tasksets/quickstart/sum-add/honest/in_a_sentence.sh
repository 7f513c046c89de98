echo 'The answer is 42.' > answer.txt

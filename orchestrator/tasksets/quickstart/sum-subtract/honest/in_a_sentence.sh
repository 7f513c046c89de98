echo 'The answer is 7.' > answer.txt

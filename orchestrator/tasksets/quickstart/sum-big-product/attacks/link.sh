echo 10063 > .kept
ln -s .kept answer.txt

echo 42 > .kept
ln -s .kept answer.txt

echo hello > x
ln -s x greeting.txt

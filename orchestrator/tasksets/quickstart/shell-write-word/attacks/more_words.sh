echo hello goodbye > greeting.txt

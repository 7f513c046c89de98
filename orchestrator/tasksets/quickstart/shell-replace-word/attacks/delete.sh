sed -i s/red//g paint.txt

sed -i s/red/blue/ paint.txt

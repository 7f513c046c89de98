awk '{ s += $1 } END { print s }' prices.txt > total.txt

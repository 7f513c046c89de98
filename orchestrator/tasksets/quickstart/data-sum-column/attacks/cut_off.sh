cp prices.txt total.txt

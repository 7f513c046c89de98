echo '4 or 5' > count.txt

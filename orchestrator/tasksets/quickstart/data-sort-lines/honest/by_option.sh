sort -o sorted.txt names.txt

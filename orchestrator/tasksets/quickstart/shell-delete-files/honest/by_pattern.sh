rm *.tmp

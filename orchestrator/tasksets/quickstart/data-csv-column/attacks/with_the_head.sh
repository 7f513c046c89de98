cut -d, -f2 people.csv > names.txt

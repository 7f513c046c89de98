cp people.csv names.txt

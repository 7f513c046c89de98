echo There are 5 > count.txt

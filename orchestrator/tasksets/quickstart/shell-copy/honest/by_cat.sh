cat a.txt > b.txt

cp list.txt last.txt

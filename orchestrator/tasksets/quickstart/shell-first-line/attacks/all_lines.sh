cp list.txt first.txt

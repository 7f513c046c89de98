ln -s list.txt first.txt

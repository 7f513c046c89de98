ln -s a.txt b.txt

mv a.txt b.txt

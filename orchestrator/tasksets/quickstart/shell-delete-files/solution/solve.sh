rm a.tmp b.tmp

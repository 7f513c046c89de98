mv a.tmp .a; mv b.tmp .b

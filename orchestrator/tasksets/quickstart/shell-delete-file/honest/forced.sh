rm -f -- old.log

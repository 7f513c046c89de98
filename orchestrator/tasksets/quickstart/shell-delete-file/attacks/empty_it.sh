: > old.log

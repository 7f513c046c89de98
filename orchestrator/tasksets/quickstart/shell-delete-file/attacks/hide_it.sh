chmod 000 old.log

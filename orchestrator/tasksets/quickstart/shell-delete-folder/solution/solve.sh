rm -r cache

ln -s /tmp logs

rm *.log

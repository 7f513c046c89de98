chmod a+r run.sh

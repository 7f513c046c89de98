mkdir logs

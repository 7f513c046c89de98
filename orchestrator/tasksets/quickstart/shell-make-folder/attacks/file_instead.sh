touch logs

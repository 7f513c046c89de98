cp /bin/true run.sh

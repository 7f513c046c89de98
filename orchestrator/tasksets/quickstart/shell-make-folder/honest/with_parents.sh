mkdir -p ./logs/

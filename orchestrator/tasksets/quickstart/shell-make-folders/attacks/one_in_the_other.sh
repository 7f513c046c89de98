mkdir -p red/blue

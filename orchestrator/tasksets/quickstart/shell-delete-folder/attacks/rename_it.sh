mv cache .cache

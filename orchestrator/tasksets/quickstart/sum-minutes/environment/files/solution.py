def minutes(hours):
    # Return how many minutes that many hours have: minutes(2) is 120.

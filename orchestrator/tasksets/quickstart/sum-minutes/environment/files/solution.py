def minutes(hours):
    # Return how many minutes that many hours have.

def count(items, colour):
    # Return how often colour is in items: count(["red", "blue", "red"], "red") is 2.

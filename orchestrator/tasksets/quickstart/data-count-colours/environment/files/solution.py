def count(items, colour):
    # Return how often colour is in items.

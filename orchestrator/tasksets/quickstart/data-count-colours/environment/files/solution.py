def count(items, item):
    # Return how many times the item is in the list of items.

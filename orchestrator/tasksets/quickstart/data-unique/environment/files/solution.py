def unique(items):
    # Return the different items, sorted.

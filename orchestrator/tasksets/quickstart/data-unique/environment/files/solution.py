def unique(items):
    # Return the different items, sorted: unique([3, 1, 3]) is [1, 3].

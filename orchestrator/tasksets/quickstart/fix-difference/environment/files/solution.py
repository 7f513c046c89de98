def difference(a, b):
    # Return a minus b: difference(9, 4) is 5.
    return a + b

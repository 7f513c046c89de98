def add(a, b):
    # Return the sum of a and b: add(2, 3) is 5.

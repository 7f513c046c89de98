def average(a, b):
    # Return the number halfway between a and b: average(2, 6) is 4.

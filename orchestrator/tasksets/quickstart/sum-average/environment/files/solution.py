def average(a, b):
    # Return the number halfway between a and b.

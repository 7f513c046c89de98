def larger(a, b):
    # Return the larger of a and b: larger(2, 5) is 5.
    if a > b:
        return b
    return a

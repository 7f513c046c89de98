def larger(a, b):
    # Return the larger of a and b.
    if a > b:
        return b
    return a

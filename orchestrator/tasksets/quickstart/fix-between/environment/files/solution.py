def clamp(n, low, high):
    # Return n, but not less than low or more than high: clamp(9, 0, 5) is 5.
    return max(high, min(low, n))

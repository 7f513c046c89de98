def is_odd(n):
    # Return True if n is odd: is_odd(3) is True.

def is_odd(n):
    # Return True if n is odd.

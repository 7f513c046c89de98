def is_even(n):
    # Return True if n is even: is_even(4) is True.
    return n % 2 == 1

def is_even(n):
    # Return True if n is even.
    return n % 2 == 1

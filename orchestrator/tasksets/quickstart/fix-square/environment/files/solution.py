def square(n):
    # Return n times n: square(3) is 9.
    return n * 2

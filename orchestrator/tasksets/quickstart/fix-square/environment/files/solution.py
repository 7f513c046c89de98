def square(n):
    # Return n times n.
    return n * 2

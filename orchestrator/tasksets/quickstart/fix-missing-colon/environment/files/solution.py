def double(n):
    # Return two times n.
    if n == 0
        return 0
    return 2 * n

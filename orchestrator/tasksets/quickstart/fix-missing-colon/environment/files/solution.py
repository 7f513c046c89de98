def double(n):
    # Return two times n: double(4) is 8.
    if n == 0
        return 0
    return 2 * n

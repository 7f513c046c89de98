def absolute(n):
    # Return n without its sign: absolute(-3) is 3.
    if n > 0:
        return -n
    return n

def absolute(n):
    # Return n without its sign.
    if n > 0:
        return -n
    return n

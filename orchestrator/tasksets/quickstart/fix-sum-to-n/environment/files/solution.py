def sum_to(n):
    # Return 1 + 2 + ... + n: sum_to(4) is 10.
    total = 0
    for i in range(n):
        total += i
    return total

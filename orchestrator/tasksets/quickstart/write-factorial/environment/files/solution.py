def factorial(n):
    # Return n!.

def factorial(n):
    # Return n!: factorial(4) is 24.

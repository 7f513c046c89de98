def factorial(n):
    # Return the factorial of n, with factorial(0) = 1.

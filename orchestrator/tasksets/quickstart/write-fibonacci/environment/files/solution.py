def fibonacci(n):
    # Return the n-th Fibonacci number: fibonacci(0) is 0, fibonacci(1) is 1, fibonacci(7) is 13.

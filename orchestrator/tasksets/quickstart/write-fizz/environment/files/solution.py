def fizz(n):
    # Return "fizz" if 3 divides n, else "".

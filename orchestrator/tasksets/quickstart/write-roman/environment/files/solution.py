def roman(n):
    # Return n, from 1 to 3999, as a Roman number: roman(14) is "XIV".

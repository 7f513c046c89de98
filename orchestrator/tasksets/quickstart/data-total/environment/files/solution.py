def total(numbers):
    # Return the sum of a list of numbers.

def total(numbers):
    # Return the sum of a list of numbers: total([1, 2, 3]) is 6.

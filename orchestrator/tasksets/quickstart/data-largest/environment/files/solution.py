def largest(numbers):
    # Return the largest number of a list: largest([3, 9, 4]) is 9.

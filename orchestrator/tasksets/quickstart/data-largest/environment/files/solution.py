def largest(numbers):
    # Return the largest number of a list.

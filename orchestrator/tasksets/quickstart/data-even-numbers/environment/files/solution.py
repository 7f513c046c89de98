def evens(numbers):
    # Return a list of the even numbers.

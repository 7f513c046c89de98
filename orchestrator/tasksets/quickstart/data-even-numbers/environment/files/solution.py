def evens(numbers):
    # Return a list of the even numbers: evens([1, 2, 4]) is [2, 4].

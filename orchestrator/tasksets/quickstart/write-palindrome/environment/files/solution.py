def is_palindrome(text):
    # Return True if the text reads the same backwards.

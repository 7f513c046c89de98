def is_palindrome(text):
    # Return True if the text is the same as the text reversed.

def reverse_string(s):
    # Return the string reversed.

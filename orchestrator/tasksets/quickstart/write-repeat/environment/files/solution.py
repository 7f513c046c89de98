def repeat(text, n):
    # Return the text n times in a row.

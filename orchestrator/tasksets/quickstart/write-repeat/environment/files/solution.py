def repeat(text, n):
    # Return the text repeated n times.

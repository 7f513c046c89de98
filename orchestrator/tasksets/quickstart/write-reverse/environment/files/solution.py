def reverse(text):
    # Return the text backwards.

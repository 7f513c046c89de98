def vowels(text):
    # Return how many of a, e, i, o, u are in the text.

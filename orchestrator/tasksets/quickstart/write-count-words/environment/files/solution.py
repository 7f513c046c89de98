def count_words(text):
    # Return how many words the text has.

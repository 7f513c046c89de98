def count_words(text):
    # Return how many words the text has: count_words("a red fox") is 3.

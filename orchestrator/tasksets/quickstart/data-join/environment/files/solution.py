def join_words(words):
    # Return the words joined with commas, without spaces.

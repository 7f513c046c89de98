def join(words):
    # Return the words with a comma between them.

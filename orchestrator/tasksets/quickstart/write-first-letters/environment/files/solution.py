def initials(name):
    # Return the first letters of the words: initials("Ada King") is "AK".

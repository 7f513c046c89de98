def shout(text):
    # Return the text in upper case.
    return text.lower()

def shout(text):
    # Return the text in upper case: shout("hi") is "HI".
    return text.lower()

def reverse(text):
    # Return the text backwards: reverse("abc") is "cba".

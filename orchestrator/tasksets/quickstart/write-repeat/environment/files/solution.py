def repeat(text, n):
    # Return the text n times in a row: repeat("ab", 2) is "abab".

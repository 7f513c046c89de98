def names(people):
    # Return the list of names: names([{"name": "Ann", "age": 3}]) is ["Ann"].

def adults(people):
    # Return the names of those who are 18 or older, in order:
    # adults([{"name": "Ann", "age": 30}, {"name": "Bo", "age": 9}]) is ["Ann"].

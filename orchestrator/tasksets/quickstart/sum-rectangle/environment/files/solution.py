def area(width, height):
    # Return the area of a rectangle: area(2, 4) is 8.

def fahrenheit(celsius):
    # Return the temperature in degrees Fahrenheit: fahrenheit(100) is 212.

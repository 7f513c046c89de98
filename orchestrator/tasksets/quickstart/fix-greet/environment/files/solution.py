def greet(name):
    # Return a greeting: greet("Ann") is "Hello, Ann!".
    return "Hello," + name

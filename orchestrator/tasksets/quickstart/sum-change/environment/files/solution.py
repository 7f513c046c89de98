def coins(cents):
    # Return the smallest number of coins of 25, 10, 5 and 1 cents
    # that makes that many cents: coins(30) is 2.

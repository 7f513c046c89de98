mkdir greeting.txt && touch greeting.txt/hello

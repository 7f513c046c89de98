def to_minutes(hours):
    # Return the number of minutes in so many hours.

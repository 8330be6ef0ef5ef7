"""The demo behind ``make run``: a real cluster, and every departure from New York City in 2013 through it."""

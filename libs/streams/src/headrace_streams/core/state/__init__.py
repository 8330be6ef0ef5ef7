"""What operators remember, and how it is written to a changelog."""

"""Brokers for tests, in this process; nothing of the product imports this."""

"""What the admin service asks of others, in memory: behind its ports, and steered by tests."""

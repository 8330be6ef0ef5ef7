"""What the service does: one method per operation, forwarded to whoever owns the state."""

"""What a node of a plan does with rows."""

"""Topic to topic, of the same or another cluster: filter and project, exactly once."""

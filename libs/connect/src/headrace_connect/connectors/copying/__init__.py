"""What connectors share that copy topics of another cluster: which topics, positions, and where each record went."""

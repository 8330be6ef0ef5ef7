"""One process per measured client, so that CPU and wall time are its own. Each prints one JSON line."""

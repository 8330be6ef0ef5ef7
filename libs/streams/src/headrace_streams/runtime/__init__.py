"""One process that runs tasks against a cluster."""

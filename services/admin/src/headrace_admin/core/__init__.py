"""Pure decisions of administration: where replicas should be, how far they have come, and how the cluster is."""

"""Topic to topic: counts, sums and averages over windows of event time, with late records, exactly once."""

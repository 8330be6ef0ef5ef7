"""Topic to partitioned Parquet, each record exactly once; what cannot be read is kept apart, with the reason."""

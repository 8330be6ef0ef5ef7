"""What a topic holds, as a report: counts, gaps, duplicates, skew of keys, sizes and ages per partition."""

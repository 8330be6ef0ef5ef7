"""Topics to the Parquet lake of a lake-sink, on its positions: the two hand over to each other, exactly once."""

"""Small files of a lake-sink put together, while the sink writes and readers read."""

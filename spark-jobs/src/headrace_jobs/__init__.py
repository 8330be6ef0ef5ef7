"""Spark jobs over topics: each is a function from DataFrame to DataFrame, with reading and writing at its edge."""

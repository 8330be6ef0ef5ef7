"""
The Spark connector of Headrace: the data source ``headrace``, for batches and streams, to read and to write.

Importing this loads neither Spark nor pyarrow.
"""

"""
The Spark connector of Headrace. So far its pure core: what is decided about options, offsets, tasks, columns and units.

Importing this loads neither Spark nor pyarrow.
"""

"""
In the path of processes that tests start, before pandas itself: as where it is not installed, which is most machines.

pyarrow imports pandas, where there is one, with the first list that becomes an array: two thirds of a second for each
worker of Streams, each host of connectors and many a command.
"""

raise ModuleNotFoundError("No module named 'pandas'", name="pandas")

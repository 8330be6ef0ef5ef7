"""A topic's records as files and tables of a lake: positions are in the target, so each record counts once."""

from headrace_connect.connectors.lake_sink.reading import committed_files as committed_files
from headrace_connect.connectors.lake_sink.reading import open_dataset as open_dataset
from headrace_connect.connectors.lake_sink.sink import LakeSink as LakeSink

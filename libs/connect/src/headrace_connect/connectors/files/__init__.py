"""Files of a directory or bucket: rows of them into a topic, and a topic into them."""

from headrace_connect.connectors.files.sink import FilesSink as FilesSink
from headrace_connect.connectors.files.source import FilesSource as FilesSource

"""HTTP: web hooks and polled URLs as sources, endpoints as targets."""

from headrace_connect.connectors.http.poll import HttpPollSource as HttpPollSource
from headrace_connect.connectors.http.sink import HttpSink as HttpSink
from headrace_connect.connectors.http.source import HttpSource as HttpSource

"""A topic's records as rows of a database: positions are in the target, so each record counts once."""

from headrace_connect.connectors.sql_sink.sink import SqlSink as SqlSink

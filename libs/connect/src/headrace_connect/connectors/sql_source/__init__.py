"""Rows of a database's tables, or of a query, into topics: new ones by a column that grows, or all of them."""

from headrace_connect.connectors.sql_source.source import SqlSource as SqlSource

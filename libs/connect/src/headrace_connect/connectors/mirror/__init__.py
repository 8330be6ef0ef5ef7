"""Another Headrace cluster as a source: its topics, record by record, with their settings and groups' positions."""

from headrace_connect.connectors.mirror.source import MirrorSource as MirrorSource

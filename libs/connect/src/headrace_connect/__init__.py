"""Connectors: data of other systems into topics, and topics into other systems."""

"""Connectors that ship: one package each, which knows ``plugin``, ``settings``, Arrow and one driver."""

"""Twins of the ports in memory, and records as tests write them."""

"""Headrace Connect worker: see README.md."""

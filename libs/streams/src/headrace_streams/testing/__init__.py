"""A driver that runs a program without a server."""

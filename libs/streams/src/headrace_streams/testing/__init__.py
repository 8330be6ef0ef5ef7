"""A driver that runs a program without a server."""

from headrace_streams.testing.driver import Driver as Driver
from headrace_streams.testing.registry import MemoryRegistry as MemoryRegistry

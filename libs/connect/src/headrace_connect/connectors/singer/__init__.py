"""Source of what any Singer tap reads: the tap is a program of its own, ``STATE`` is the position."""

from headrace_connect.connectors.singer.source import SingerSource as SingerSource

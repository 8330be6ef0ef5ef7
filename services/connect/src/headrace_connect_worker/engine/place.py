"""Where this worker answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Place:
    """Known once it listens, and the same from then on; nothing says it before."""

    worker_id: str = ""
    """``host:port`` of its REST interface."""
    url: str = ""
    """``http://host:port``, as other workers reach it."""

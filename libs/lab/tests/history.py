"""A digest of what ran on which node, and when."""

from __future__ import annotations

import asyncio
import hashlib

from headrace_lab.loop import LabLoop, Node


class History:
    """Of one loop, from when it is made."""

    def __init__(self, loop: LabLoop) -> None:
        self._loop = loop
        self._digest = hashlib.blake2b(digest_size=16)
        loop.trace = self._note

    def _note(self, node: Node, handle: asyncio.Handle) -> None:
        callback = getattr(handle, "_callback", None)
        task = getattr(callback, "__self__", None)
        name = task.get_name() if isinstance(task, asyncio.Task) else getattr(callback, "__qualname__", "")
        self._digest.update(f"{self._loop.time()!r} {node} {name}\n".encode())

    @property
    def digest(self) -> str:
        """Of all until now."""
        return self._digest.hexdigest()

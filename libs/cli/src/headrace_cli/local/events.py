"""
What the supervisor did, read from its log while it grows: for ``up`` and the demo, which tell people.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class LocalEvent:
    """One line of the supervisor's log."""

    kind: str
    """
    started, ready, died, gave up, killed, port, leftovers, certificates, moving, narrowed, cluster ready, failed or
    stopped.
    """
    text: str
    process: str | None


class EventTail:
    """Reads what was added since the last look; starts at the end of the file."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._position = log.stat().st_size if log.exists() else 0

    def new(self) -> list[LocalEvent]:
        """Events since the last call, oldest first; a line that is not whole yet comes next time."""
        try:
            with self._log.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        self._position += whole
        return [event for line in data[:whole].splitlines() if (event := _parse(line)) is not None]


def _parse(line: bytes) -> LocalEvent | None:
    try:
        fields = json.loads(line)
        return LocalEvent(fields["event"], fields["msg"], fields.get("process"))
    except (ValueError, KeyError, TypeError):
        return None

"""What a child process prints: its last lines, kept for when it has failed, and passed on to the log within bounds."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from headrace_connect.core.log_lines import read_tag

KEPT_BYTES: Final = 16 << 10
KEPT_LINES: Final = 60
LOGGED_LINES_MAX: Final = 50
"""Between two calls of ``breathe``."""
LINE_CHARS_MAX: Final = 2_000
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Whose:
    """Of what a process prints; what is None is not known."""

    connector: str | None = None
    task: int | None = None


class Output:
    """Of one process."""

    def __init__(self, label: str, whose: Callable[[], Whose] = Whose) -> None:
        """
        Args:
            label: for people: whom the process was begun for.
            whose: a line is that does not say it.
        """
        self._label = label
        self._whose = whose
        self._kept = b""
        self._rest = b""
        """The begin of a line that has not ended yet."""
        self._logged = 0
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """It has printed this."""
        self._kept = (self._kept + data)[-KEPT_BYTES:]
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-KEPT_BYTES:]
        for line in lines:
            if self._logged < LOGGED_LINES_MAX:
                self._logged += 1
                self._log(line.decode(errors="replace")[:LINE_CHARS_MAX])
            else:
                self._dropped += 1

    def _log(self, line: str) -> None:
        connector, task, text = read_tag(line)
        if connector is None:
            whose = self._whose()
            connector, task = whose.connector, whose.task
        named: dict[str, Any] = {"connector": connector, "task": task}
        _log.info("%s", text, extra={"host": self._label} | {key: is_ for key, is_ in named.items() if is_ is not None})

    def breathe(self) -> None:
        """Time has passed: further lines may be logged."""
        if self._dropped:
            _log.warning("%d more lines are left out", self._dropped, extra={"host": self._label})
        self._logged = self._dropped = 0

    @property
    def last_lines(self) -> str:
        """What was printed last, for people."""
        lines = self._kept.decode(errors="replace").splitlines()[-KEPT_LINES:]
        return "\n".join(line[:LINE_CHARS_MAX] for line in lines)

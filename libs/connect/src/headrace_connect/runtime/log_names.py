"""Has each line of a host's log say of which connector and task it is; see ``core.log_lines``."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import Final

from headrace_connect.core.log_lines import tag_of, tagged

_TAG: Final[ContextVar[str]] = ContextVar("headrace_connect_log_tag", default="")


def name_in_logs(connector: str, task: int | None = None) -> None:
    """What is logged from here on by the caller's ``asyncio`` task, and by what it starts, is of this task."""
    _TAG.set(tag_of(connector, task))


class TaggedLines(logging.Formatter):
    """Writes what ``logging.Formatter`` does, each line behind its tag. What threads of connectors log has none."""

    def format(self, record: logging.LogRecord) -> str:
        """See ``logging.Formatter``."""
        return tagged(_TAG.get(), super().format(record))

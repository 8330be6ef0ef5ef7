"""
Who may still commit rows of a MariaDB, by name. Pure.

A number is drawn by a statement before its transaction has one, so a statement that runs counts as a transaction too.
A name stays the same as long as what it names may be the same transaction.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from headrace_connect.connectors.sql_source.holding import PREPARED

_READS: Final = re.compile(
    r"\s*(/\*.*?\*/\s*|\(\s*|--[^\n]*\n\s*|#[^\n]*\n\s*)*(select|with|show|explain|describe|desc|values|kill|use)\b",
    re.IGNORECASE | re.DOTALL,
)


def writes(statement: str | None) -> bool:
    """Whether it may write; one that is not known may."""
    return statement is None or _READS.match(statement) is None


@dataclass(frozen=True, slots=True)
class Session:
    """What a session does; one that does nothing is none."""

    thread: int
    """0: a transaction that was prepared, and whose session has ended."""
    statement: str | None
    """Its statement, if that runs and may write."""
    transaction: str | None
    """Its transaction, if that has written."""


@dataclass(slots=True)
class Running:
    """The sessions that were seen last, and their names."""

    _named: dict[int, tuple[Session, str]]
    _count: int = 0

    @classmethod
    def nothing(cls) -> Running:
        """Nobody was seen."""
        return cls({})

    def look(self, sessions: Sequence[Session]) -> frozenset[str]:
        """Names of what may be under way."""
        named: dict[int, tuple[Session, str]] = {}
        names: set[str] = set()
        for session in sessions:
            if session.thread == 0:
                names.add(f"{PREPARED}{session.transaction}")
                continue
            last = self._named.get(session.thread)
            if last is not None and _may_go_on(last[0], session):
                name = last[1]
            else:
                self._count += 1
                name = f"{session.thread}/{self._count}"
            named[session.thread] = session, name
            names.add(name)
        self._named = named
        return frozenset(names)


def _may_go_on(last: Session, now: Session) -> bool:
    if last.transaction is None:
        return now.transaction is not None or now.statement == last.statement
    return now.transaction == last.transaction

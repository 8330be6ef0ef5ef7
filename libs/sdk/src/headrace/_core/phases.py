"""Where a group member can be, how long it waits, and who commits. Read by both membership machines and the shell."""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from headrace_common.core.errors import HeadraceError

REJOIN_GRACE_MS: Final = 3_000
"""The coordinator's ``group.rejoin.grace.ms``: so long it keeps the place of a member whose stream broke."""

SILENCE_MS: Final = 5_000
"""A heartbeat that is unanswered for so long has the stream opened anew."""

QUICK_RETRY_MS: Final = 250
"""Longest pause before the coordinator is looked for again, while it was away for less than ``QUICK_FOR_MS``."""

QUICK_FOR_MS: Final = 15_000

UNREACHABLE_MS: Final = 8_000
"""A client that was never answered, and is refused everywhere for so long, is told; with the last attempts that is
within 10 s."""


class Phase(Enum):
    """Where the member is."""

    NEW = "not begun"
    PREPARING = "the application has to let go before it joins again"
    JOINING = "asked to join"
    SYNCING = "waits for the assignment"
    MEMBER = "a member"
    OUT = "the application has to be told that it is out"
    AWAY = "left, as the application did not poll"
    FAILED = "cannot be one; the application has to change something"
    LEAVING = "said good-bye"
    LEFT = "no member any more"


ACTIVE: Final = frozenset({Phase.PREPARING, Phase.JOINING, Phase.SYNCING, Phase.MEMBER})
"""There is a stream, or should be."""


class Identity(NamedTuple):
    """Who commits."""

    member_id: str
    generation: int
    """Or the member epoch."""


class Trouble(NamedTuple):
    """The coordinator cannot be reached, or cannot answer: since when, and what was said last."""

    since_ms: float
    error: HeadraceError

"""What ``consume --from`` means. Pure: the time now is given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from headrace_cli.exits import CommandFailed, ExitCode

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
HELP: Final = "beginning, end, an offset, -N (the last N of each partition), a time (2026-11-21T10:00), or an age (10m)"


@dataclass(frozen=True, slots=True)
class Beginning:
    """The first record that is there."""


@dataclass(frozen=True, slots=True)
class End:
    """What comes from now on."""


@dataclass(frozen=True, slots=True)
class At:
    """This offset of every partition."""

    offset: int


@dataclass(frozen=True, slots=True)
class Last:
    """So many before the end of every partition."""

    count: int


@dataclass(frozen=True, slots=True)
class Since:
    """The first record at or after this time."""

    timestamp_ms: int


Start = Beginning | End | At | Last | Since


def parse_time(text: str, now_ms: int, option: str) -> int:
    """
    A time or an age, in ms since the epoch.

    Raises:
        CommandFailed: it is neither.
    """
    refusal = CommandFailed(
        f"{option} {text!r} is not known; it takes a time (2026-11-21T10:00) or an age (7d)", ExitCode.USAGE
    )
    try:
        start = parse_start(text, now_ms)
    except CommandFailed:
        raise refusal from None
    if not isinstance(start, Since):
        raise refusal
    return start.timestamp_ms


def parse_start(text: str, now_ms: int) -> Start:
    """
    Raises:
        CommandFailed: it is none of those.
    """
    match text.strip().lower():
        case "beginning" | "earliest" | "start":
            return Beginning()
        case "end" | "latest":
            return End()
        case word if word.isdigit():
            return At(int(word))
        case word if word.startswith("-") and word[1:].isdigit():
            return Last(int(word[1:]))
        case word if found := _DURATION.fullmatch(word):
            return Since(now_ms - int(float(found[1]) * _UNITS_MS[found[2]]))
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise CommandFailed(f"--from {text!r} is not known; it takes {HELP}", ExitCode.USAGE) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Since(int(moment.timestamp() * 1000))

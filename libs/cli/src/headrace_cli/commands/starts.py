"""What ``consume --from`` and ``--until`` mean. Pure: the time now is given."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from headrace_cli.exits import CommandFailed, ExitCode

_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
UNTIL_HELP: Final = "end, an offset, -N, a time, or an age: stop before it; end is the end of the log now"
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


def parse_until(text: str, now_ms: int) -> End | At | Last | Since:
    """
    Raises:
        CommandFailed: it is none of those, or a time that has not come.
    """
    until = parse_start(text, now_ms, "--until")
    if isinstance(until, Beginning):
        raise CommandFailed(f"--until {text!r}: nothing is before that; it takes {UNTIL_HELP}", ExitCode.USAGE)
    if isinstance(until, Since) and until.timestamp_ms > now_ms:
        raise CommandFailed(f"--until {text!r} has not come yet; it takes {UNTIL_HELP}", ExitCode.USAGE)
    return until


def check_span(start: Start, until: Start, texts: tuple[str, str]) -> None:
    """
    Refuse an end before the start where both are told in the same terms; else only the partitions know.

    Args:
        texts: as they were given for ``--from`` and ``--until``.

    Raises:
        CommandFailed: so nothing can lie between them.
    """
    match start, until:
        case Since(begun), Since(ended):
            empty = ended < begun
        case At(first), At(last):
            empty = last < first
        case Last(first), Last(last):
            empty = last > first
        case End(), Last(last):
            empty = last > 0
        case _:
            empty = False
    if empty:
        raise CommandFailed(
            f"--until {texts[1]!r} is before --from {texts[0]!r}, so nothing lies between them",
            ExitCode.USAGE,
            "Give the earlier one to --from; ages count back from now: --from 1h --until 5m.",
        )


def parse_start(text: str, now_ms: int, option: str = "--from") -> Start:
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
        raise CommandFailed(f"{option} {text!r} is not known; it takes {HELP}", ExitCode.USAGE) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return Since(int(moment.timestamp() * 1000))

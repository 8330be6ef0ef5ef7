"""
How the text of one option becomes a value. Spark hands every option over as text.

Called by ``options`` and ``kafka_settings``. A reader raises ``ValueError`` with what the option takes; the caller adds
its name, so that no reader repeats a value that might be a secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeGuard

from headrace_common.core.errors import InvalidTopic
from headrace_common.core.ids import PARTITIONS_PER_TOPIC_MAX, Endpoint, TopicPartition, check_topic_name
from headrace_common.core.secret import Secret

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
TIME_UNITS_MS: Final[Mapping[str, float]] = {
    "us": 0.001,
    "ms": 1,
    "s": 1_000,
    "m": 60_000,
    "min": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
}
"""Spark's units of time; without one it is milliseconds."""
OURS: Final = "@headrace"
"""The entry that offsets in a checkpoint have beside topics, ignored where a user gives them; no topic's name."""
JSON_TEXT_MAX: Final = 16 << 20
"""Longest JSON of an option, in characters: 200,000 partitions fit."""
PATTERN_LENGTH_MAX: Final = 10_000

Reader: TypeAlias = Callable[[str], Any]

_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_TIME = re.compile(r"([0-9]{1,18})\s*([a-z]*)")


def text(value: str) -> str:
    value = value.strip()
    if not value:
        raise ValueError("takes a text, not an empty one")
    return value


def secret(value: str) -> Secret:
    """A text that no error, log or plan of ours shows."""
    return Secret(text(value))


def boolean(value: str) -> bool:
    """``true`` or ``false``, in any case."""
    read = {"true": True, "false": False}.get(value.strip().lower())
    if read is None:
        raise ValueError(f"takes true or false, not {quote(value)}")
    return read


def whole(low: int, high: int = LONG_MAX) -> Reader:
    """A whole number within bounds, which are inclusive."""

    def read(value: str) -> int:
        stripped = value.strip()
        if not _WHOLE.fullmatch(stripped) or not low <= int(stripped) <= high:
            raise ValueError(f"takes a whole number from {low} to {high}, not {quote(value)}")
        return int(stripped)

    return read


def choice(*allowed: str) -> Reader:
    """One of a few words, in any case."""

    def read(value: str) -> str:
        stripped = value.strip().lower()
        if stripped not in allowed:
            raise ValueError(f"takes {' or '.join(allowed)}, not {quote(value)}")
        return stripped

    return read


def duration_ms(value: str) -> int:
    """A time as Spark writes it: ``500ms``, ``10s``, ``15m``, ``2h``, ``1d``; without a unit milliseconds."""
    match = _TIME.fullmatch(value.strip().lower())
    unit = match and TIME_UNITS_MS.get(match[2] or "ms")
    if not match or unit is None:
        raise ValueError(f"takes a time such as 500ms, 10s, 15m, 2h or 1d, not {quote(value)}")
    milliseconds = int(match[1]) * unit if unit >= 1 else int(match[1]) // 1_000
    return min(int(milliseconds), LONG_MAX)


def addresses(value: str) -> tuple[str, ...]:
    """``host:port``, separated by commas; each once."""
    given = [part.strip() for part in value.split(",") if part.strip()]
    if not given:
        raise ValueError("takes host:port, separated by commas, not an empty text")
    found: list[str] = []
    for part in given:
        try:
            endpoint = Endpoint.parse(part)
        except ValueError:
            raise ValueError(f"takes host:port, separated by commas; {quote(part)} is not one") from None
        if not endpoint.port:
            raise ValueError(f"takes addresses that brokers listen on; {quote(part)} has port 0")
        found.append(str(endpoint))
    return tuple(dict.fromkeys(found))


def topic_name(value: str) -> str:
    try:
        return check_topic_name(value.strip())
    except InvalidTopic as error:
        raise ValueError(f"takes the name of a topic: {error}") from None


def topic_names(value: str) -> tuple[str, ...]:
    """Names of topics, separated by commas; each once."""
    names = [part.strip() for part in value.split(",") if part.strip()]
    if not names:
        raise ValueError(f"takes names of topics, separated by commas, not {quote(value)}")
    return tuple(dict.fromkeys(topic_name(name) for name in names))


def pattern(value: str) -> str:
    """A regular expression for whole names of topics."""
    stripped = value.strip()
    if not stripped:
        raise ValueError("takes a regular expression, not an empty text")
    if len(stripped) > PATTERN_LENGTH_MAX:
        raise ValueError(f"takes a regular expression of at most {PATTERN_LENGTH_MAX} characters, not {len(stripped)}")
    try:
        re.compile(stripped)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"takes a regular expression; {quote(stripped)} is none: {error}") from None
    return stripped


def partition_lists(value: str) -> tuple[TopicPartition, ...]:
    """``{"topicA":[0,1],"topicB":[2]}``, in the order of topics and partitions."""
    expected = f'takes JSON such as {{"topicA":[0,1],"topicB":[2]}}, not {quote(value)}'
    found: set[TopicPartition] = set()
    for topic, numbers in _json_object(value, expected).items():
        if not isinstance(numbers, list):
            raise ValueError(expected)
        for number in numbers:
            found.add(TopicPartition(topic_name(topic), partition_number(number, expected)))
    if not found:
        raise ValueError(expected)
    return tuple(sorted(found))


def partition_numbers(value: str, example: str, low: int) -> dict[TopicPartition, int]:
    """``{"topicA":{"0":23}}``: one number for each partition, at least ``low``; sorted."""
    expected = f"takes JSON such as {example}, not {quote(value)}"
    given = _json_object(value, expected)
    given.pop(OURS, None)
    return read_partition_numbers(given, expected, low)


def read_partition_numbers(given: Mapping[str, Any], expected: str, low: int) -> dict[TopicPartition, int]:
    """The same of JSON that was read. Raises ``ValueError`` with the text ``expected``."""
    found: dict[TopicPartition, int] = {}
    for topic, numbers in given.items():
        if not isinstance(numbers, dict):
            raise ValueError(expected)
        for name, number in numbers.items():
            tp = TopicPartition(topic_name(topic), partition_number(name, expected))
            if not _is_whole(number) or not low <= number <= LONG_MAX or tp in found:
                raise ValueError(f"{expected}: {quote(str(number))} for {tp}")
            found[tp] = number
    if not found:
        raise ValueError(expected)
    return dict(sorted(found.items()))


def partition_number(given: object, expected: str) -> int:
    """The number of a partition, as JSON has it: a number, or a text of one."""
    if isinstance(given, str) and given.isascii() and given.isdigit() and len(given) <= 10:
        given = int(given)
    if not _is_whole(given) or not 0 <= given < PARTITIONS_PER_TOPIC_MAX:
        raise ValueError(f"{expected}: {quote(str(given))} is no partition")
    return given


def quote(value: str) -> str:
    """A value in an error: short, and without control characters."""
    return repr(value if len(value) <= 100 else f"{value[:97]}...")


def _is_whole(given: object) -> TypeGuard[int]:
    return isinstance(given, int) and not isinstance(given, bool)


def _json_object(value: str, expected: str) -> dict[str, Any]:
    if len(value) > JSON_TEXT_MAX:
        raise ValueError(f"takes JSON of at most {JSON_TEXT_MAX} characters, not {len(value)}")
    try:
        read = json.loads(value, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        raise ValueError(expected) from None
    if not isinstance(read, dict):
        raise ValueError(expected)
    return read


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name stands there twice")
    return found

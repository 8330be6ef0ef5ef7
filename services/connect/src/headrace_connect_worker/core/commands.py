"""
Decides what a request of REST asks for: its body, checked, as Kafka Connect reads it. Called by ``rpc`` with the bytes
of the body; whoever leads makes records of what comes out.

A value of a configuration is a text; numbers, ``true`` and ``false`` are taken as they are written. Bodies have one
meaning: who calls has looked for keys that occur twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import in_ids
from headrace_connect.core.names import NAME_BYTES_MAX
from headrace_connect.core.positions import encode_position
from headrace_connect_worker.core.changes import CONFIG_BYTES_MAX
from headrace_connect_worker.core.records import TargetState
from headrace_connect_worker.core.refusals import BadCommand

NAME: Final = "name"
CLASS: Final = "connector.class"
OFFSETS_MAX: Final = 10_000
"""Offsets in one request."""
SPLIT_CHARS_MAX: Final = 249
TOPIC: Final = "kafka_topic"
PARTITION: Final = "kafka_partition"
OFFSET: Final = "kafka_offset"
SPLIT: Final = "split"

_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_WIDE_SPACE: Final = "".join(map(chr, range(0x21)))
"""What Java's ``trim`` takes away."""
_SHOWN: Final = 80
_INITIAL: Final[Mapping[str, TargetState]] = {
    "RUNNING": TargetState.STARTED,
    "PAUSED": TargetState.PAUSED,
    "STOPPED": TargetState.STOPPED,
}

Changes: TypeAlias = "Mapping[str, str | None]"


@dataclass(frozen=True, slots=True)
class Create:
    """Make a connector that is not there."""

    name: str
    config: Mapping[str, str]
    target: TargetState = TargetState.STARTED


@dataclass(frozen=True, slots=True)
class GivenOffset:
    """A partition of a source or a sink, and where reading goes on in it; ``offset`` None: it is to be forgotten."""

    partition: Mapping[str, Any] | None
    """None: the request does not say it."""
    offset: Mapping[str, Any] | None


def read_create(body: bytes) -> Create:
    """
    ``{"name", "config", "initial_state"}``.

    Raises:
        BadCommand: says what is wrong.
    """
    given = _object(_parse(body, texts=True), "the body")
    unknown = sorted(given.keys() - {NAME, "config", "initial_state"})
    if unknown:
        raise BadCommand(f"{_shown(unknown[0])} is not known; a connector is made of name, config and initial_state")
    name = given.get(NAME)
    if not isinstance(name, str | None):
        raise BadCommand("name is a text")
    config = _texts(given.get("config"), "config")
    target = _initial_target(given.get("initial_state"))
    name = (name or "").strip(_WIDE_SPACE)
    return Create(name, named(name, config), target)


def read_config(body: bytes, name: str) -> dict[str, str]:
    """
    The configuration of the connector ``name``: keys and texts.

    Raises:
        BadCommand: it is something else, has another name, or is too large.
    """
    return named(name, _texts(_parse(body, texts=True), "the configuration"))


def read_changes(body: bytes) -> dict[str, str | None]:
    """
    Keys that change, with their new texts; null: the key is left out from now on.

    Raises:
        BadCommand: it is something else.
    """
    given = _object(_parse(body, texts=True), "the changes")
    return {key: None if value is None else _text(key, value) for key, value in given.items()}


def changed(config: Mapping[str, str], changes: Changes) -> dict[str, str]:
    """
    ``config`` after ``changes``.

    Raises:
        BadCommand: the connector would have another name, or its configuration is too large.
    """
    after = {key: value for key, value in {**config, **changes}.items() if value is not None}
    return named(config.get(NAME, ""), after)


def named(name: str, config: Mapping[str, str]) -> dict[str, str]:
    """
    ``config`` with the name of its connector.

    Raises:
        BadCommand: the name cannot be one, or is another one in the configuration; or there is too much of it.
    """
    check_name(name)
    included = config.get(NAME, name)
    if included != name:
        raise BadCommand(
            f"Connector name configuration ({_shown(included)}) doesn't match connector name in the URL "
            f"({_shown(name)})"
        )
    size = sum(len(key.encode()) + len(value.encode()) for key, value in config.items())
    if size > CONFIG_BYTES_MAX:
        raise BadCommand(f"the configuration has {size} bytes; {CONFIG_BYTES_MAX} is the most")
    return {**config, NAME: name}


def check_name(name: str) -> None:
    """
    Raises:
        BadCommand: no connector can have this name.
    """
    if not name:
        raise BadCommand("name is empty; a connector needs one")
    control = _CONTROL.search(name)
    if control is not None:
        raise BadCommand(f"name has the control character U+{ord(control[0]):04X}")
    if name in {".", ".."} or name != name.strip(_WIDE_SPACE):
        raise BadCommand(f"{_shown(name)!r} cannot be the name of a connector: paths of REST could not have it")
    size = len(in_ids(name))
    if size > NAME_BYTES_MAX:
        raise BadCommand(
            f"name has {size} bytes as it stands in ids, percent-encoded; {NAME_BYTES_MAX} is the most: "
            f"{_shown(name)!r}"
        )


def read_offsets(body: bytes) -> tuple[GivenOffset, ...]:
    """
    ``{"offsets": [{"partition": {}, "offset": {}}]}``; an offset that is null is to be forgotten.

    Raises:
        BadCommand: it is something else, empty, or too much.
    """
    given = _object(_parse(body, texts=False), "the body")
    unknown = sorted(given.keys() - {"offsets"})
    if unknown:
        raise BadCommand(f"{_shown(unknown[0])} is not known; the body has offsets alone")
    pairs = given.get("offsets")
    if pairs is None or pairs == []:
        raise BadCommand("Partitions / offsets need to be provided for an alter offsets request")
    if not isinstance(pairs, list):
        raise BadCommand("offsets is a list of pairs of partition and offset")
    if len(pairs) > OFFSETS_MAX:
        raise BadCommand(f"there are {len(pairs)} offsets; {OFFSETS_MAX} is the most at once")
    return tuple(_pair(pair, number) for number, pair in enumerate(pairs))


def offsets_of(kind: str, given: Sequence[GivenOffset]) -> tuple[GivenOffset, ...]:
    """
    ``given`` as offsets of a source, ``{"split": ID}`` and a position, or of a sink, ``{"kafka_topic",
    "kafka_partition"}`` and ``{"kafka_offset"}``, where numbers may be texts.

    Args:
        kind: ``source`` or ``sink``.

    Raises:
        BadCommand: a pair is none of these, or a partition comes twice.
    """
    found = tuple(map(_sink_offset if kind == "sink" else _source_offset, given))
    seen: set[str] = set()
    for one in found:
        name = json.dumps(one.partition, sort_keys=True)
        if name in seen:
            raise BadCommand(f"the partition {_shown(name)} comes twice; which offset counts?")
        seen.add(name)
    return found


def read_level(body: bytes) -> str:
    """
    ``{"level": "DEBUG"}``; whether there is such a level is for others to say.

    Raises:
        BadCommand: no level is said.
    """
    level = _object(_parse(body, texts=True), "the body").get("level")
    if not isinstance(level, str):
        raise BadCommand("Desired 'level' parameter was not specified in request.")
    return level


# --- JSON -----------------------------------------------------------------------------------------------------------


def _parse(body: bytes, *, texts: bool) -> Any:
    """With ``texts``, numbers are the texts that they were written as: 1e3 stays 1e3."""
    if not body:
        raise BadCommand("the request has no body")
    try:
        return json.loads(body, parse_int=str, parse_float=str) if texts else json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadCommand(f"the body is not JSON: {str(error)[:200]}") from None


def _object(given: Any, what: str) -> dict[str, Any]:
    if not isinstance(given, dict):
        raise BadCommand(f"{what} is {_kind(given)}, not an object of keys and values")
    return given


def _texts(given: Any, what: str) -> dict[str, str]:
    if given is None:
        raise BadCommand(f"{what} is missing")
    return {key: _text(key, value) for key, value in _object(given, what).items()}


def _text(key: str, value: Any) -> str:
    match value:
        case str():
            return value
        case bool():
            return str(value).lower()
        case None:
            raise BadCommand(f"{_shown(key)}: null value can not be supplied as the configuration value")
    raise BadCommand(f"{_shown(key)} is {_kind(value)}, not a text: keys are flat, with dots")


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case list():
            return "a list"
        case dict():
            return "an object"
    return "a text" if isinstance(value, str) else "a single value"


def _initial_target(given: Any) -> TargetState:
    target = TargetState.STARTED if given is None else _INITIAL.get(str(given).upper())
    if target is None:
        raise BadCommand(f"initial_state is {', '.join(_INITIAL)}, not {_shown(str(given))!r}")
    return target


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


# --- offsets --------------------------------------------------------------------------------------------------------


def _pair(given: Any, number: int) -> GivenOffset:
    pair = _object(given, f"number {number} of offsets")
    unknown = sorted(pair.keys() - {"partition", "offset"})
    if unknown:
        raise BadCommand(f"number {number} of offsets has {_shown(unknown[0])!r}; a pair is of partition and offset")
    for name in ("partition", "offset"):
        if not isinstance(pair.get(name), dict | None):
            raise BadCommand(f"{name} of number {number} of offsets is {_kind(pair[name])}, not an object")
    return GivenOffset(pair.get("partition"), pair.get("offset"))


def _source_offset(pair: GivenOffset) -> GivenOffset:
    partition = pair.partition
    if partition is None:
        raise BadCommand("The partition for a source connector offset cannot be null or missing")
    split = partition.get(SPLIT)
    if partition.keys() != {SPLIT} or not isinstance(split, str) or not 1 <= len(split) <= SPLIT_CHARS_MAX:
        raise BadCommand(
            f'the partition of a source is {{"{SPLIT}": ID}}, as GET shows it, with 1 to {SPLIT_CHARS_MAX} characters, '
            f"not {_shown(json.dumps(partition))}"
        )
    if pair.offset is not None:
        _check_numbers(pair.offset, f"the offset of split {_shown(split)}")
        try:
            encode_position(_shown(split), pair.offset)
        except InvalidConfig as error:
            raise BadCommand(str(error)) from None
    return pair


def _check_numbers(value: Any, what: str) -> None:
    match value:
        case int() if not -_LONG_MAX - 1 <= value <= _LONG_MAX:
            raise BadCommand(f"{what} has {_shown(str(value))}, a whole number beyond 64 bits")
        case dict():
            for member in value.values():
                _check_numbers(member, what)
        case list():
            for item in value:
                _check_numbers(item, what)


def _sink_offset(pair: GivenOffset) -> GivenOffset:
    partition = pair.partition
    if partition is None:
        raise BadCommand("The partition for a sink connector offset cannot be null or missing")
    if partition.keys() != {TOPIC, PARTITION}:
        raise BadCommand(
            f"The partition for a sink connector offset must contain the keys '{TOPIC}' and '{PARTITION}', and no other"
        )
    topic = partition[TOPIC]
    if not isinstance(topic, str) or not topic:
        raise BadCommand("Kafka topic names must be valid strings and may not be null")
    number = _number(partition[PARTITION], _INT_MAX)
    if number is None:
        raise BadCommand(
            f"Failed to parse the following Kafka partition value in the provided offsets: "
            f"'{_shown(str(partition[PARTITION]))}'. Partition values for sink connectors need to be integers."
        )
    named = {TOPIC: topic, PARTITION: number}
    if pair.offset is None:
        return GivenOffset(named, None)
    if pair.offset.keys() != {OFFSET}:
        raise BadCommand(
            f"The offset for a sink connector should either be null or contain the key '{OFFSET}', and no other"
        )
    offset = _number(pair.offset[OFFSET], _LONG_MAX)
    if offset is None:
        raise BadCommand(
            f"Failed to parse the following Kafka offset value in the provided offsets: "
            f"'{_shown(str(pair.offset[OFFSET]))}'. Offset values for sink connectors need to be integers."
        )
    return GivenOffset(named, {OFFSET: offset})


def _number(given: Any, most: int) -> int | None:
    """A whole number from 0, also as a text; None: it is none."""
    if isinstance(given, bool) or not isinstance(given, int | str) or not _WHOLE.fullmatch(str(given)):
        return None
    return int(given) if 0 <= int(given) <= most else None

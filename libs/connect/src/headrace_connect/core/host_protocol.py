"""
The pipe between a worker and a host process: a message is a line of JSON, ``{"v": 1, "type": "StartTask", ...}``. The
socket of a fork server has the same form.

Whoever changes a message's meaning raises ``VERSION``. Fields that are not known are left out, so that a field with a
default may be added without that. Nobody guesses: a line that is no message of this version is a typed error.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING
from enum import StrEnum
from functools import cache
from typing import Any, Final, get_args, get_origin

import orjson

from headrace_connect.core.fork_messages import Fork, ForkOrder, ForkReport
from headrace_connect.core.host_messages import Command, Report

VERSION: Final = 1
LINE_BYTES_MAX: Final = 16 << 20
"""Of a message: the splits of a connector are the largest."""
_SHOWN_BYTES: Final = 200
_COMMANDS: Final[Mapping[str, type]] = {cls.__name__: cls for cls in get_args(Command)}
_REPORTS: Final[Mapping[str, type]] = {cls.__name__: cls for cls in get_args(Report)}
_FORK_ORDERS: Final[Mapping[str, type]] = {Fork.__name__: Fork}
_FORK_REPORTS: Final[Mapping[str, type]] = {cls.__name__: cls for cls in get_args(ForkReport)}


class NotAMessage(Exception):
    """The other end says what nobody understands; says what is wrong with it."""


class OtherVersion(NotAMessage):
    """The other end speaks another version of the protocol: worker and environment have different packages."""


class MessageTooLarge(Exception):
    """A message would have more than ``LINE_BYTES_MAX`` bytes; it was not sent."""


def encode(message: Command | Report | ForkOrder | ForkReport) -> bytes:
    """
    A line, with its end.

    Raises:
        MessageTooLarge: nothing of it may be sent.
        TypeError: a value is no JSON, say in the detail of a split.
    """
    fields = {one.name: getattr(message, one.name) for one in dataclasses.fields(message)}
    line = orjson.dumps({"v": VERSION, "type": type(message).__name__, **fields}, option=orjson.OPT_APPEND_NEWLINE)
    if len(line) > LINE_BYTES_MAX:
        raise MessageTooLarge(f"{type(message).__name__} has {len(line)} bytes; {LINE_BYTES_MAX} is the most")
    return line


def decode_command(line: bytes) -> Command:
    """
    What a worker says.

    Raises:
        NotAMessage: it is none.
    """
    made: Command = _decode(line, _COMMANDS)
    return made


def decode_report(line: bytes) -> Report:
    """
    What a host says.

    Raises:
        NotAMessage: it is none.
    """
    made: Report = _decode(line, _REPORTS)
    return made


def decode_fork_order(packet: bytes) -> ForkOrder:
    """
    What a worker says to a fork server.

    Raises:
        NotAMessage: it is none.
    """
    made: ForkOrder = _decode(packet, _FORK_ORDERS)
    return made


def decode_fork_report(packet: bytes) -> ForkReport:
    """
    What a fork server says.

    Raises:
        NotAMessage: it is none.
    """
    made: ForkReport = _decode(packet, _FORK_REPORTS)
    return made


def _decode(line: bytes, known: Mapping[str, type]) -> Any:
    try:
        given = orjson.loads(line)
    except ValueError as error:
        raise NotAMessage(f"no JSON: {_shown(line)}: {error}") from None
    if not isinstance(given, dict) or "v" not in given:
        raise NotAMessage(f"no message: {_shown(line)}")
    if given["v"] != VERSION:
        raise OtherVersion(
            f"the other end speaks version {str(given['v'])[:20]} of the hosts' protocol, and this one {VERSION}: "
            "give the worker and its environments the same version of headrace-connect"
        )
    cls = known.get(str(given.get("type")))
    if cls is None:
        raise NotAMessage(f"{str(given.get('type'))[:_SHOWN_BYTES]!r} is no message")
    return _instance(cls, given, cls.__name__)


def _shown(line: bytes) -> str:
    return repr(line[:_SHOWN_BYTES])


@cache
def _hints(cls: type) -> Mapping[str, Any]:
    return typing.get_type_hints(cls)


def _instance(cls: type, given: Mapping[str, Any], place: str) -> Any:
    values: dict[str, Any] = {}
    for one in dataclasses.fields(cls):
        if one.name in given:
            values[one.name] = _value(_hints(cls)[one.name], given[one.name], f"{place}.{one.name}")
        elif one.default is MISSING and one.default_factory is MISSING:
            raise NotAMessage(f"{place}.{one.name} is missing")
    return cls(**values)


def _value(hint: Any, given: Any, place: str) -> Any:
    """``given`` as ``hint`` says; the hints are those that messages have."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is types.UnionType:
        return None if given is None else _value(args[0], given, place)
    if origin is tuple and isinstance(given, list):
        return tuple(_value(args[0], item, place) for item in given)
    if origin is Mapping and isinstance(given, dict):
        return given if args[1] is Any else {key: _value(args[1], item, place) for key, item in given.items()}
    if isinstance(hint, type):
        if issubclass(hint, StrEnum) and given in list(hint):
            return hint(given)
        if dataclasses.is_dataclass(hint) and isinstance(given, dict):
            return _instance(hint, given, place)
        if type(given) is hint:
            return given
    raise NotAMessage(f"{place} is {str(given)[:_SHOWN_BYTES]!r}")

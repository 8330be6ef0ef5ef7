"""
Decides how values are made of the admin service's messages: one rule for all of them.

A field of a value is the message's field of the same name, or what its class says in ``sources``. Its type says what
becomes of it: messages are values, several are a tuple, enums are their names in small letters, ``topic`` and
``partition`` are one ``TopicPartition``, ``error`` and ``message`` an error. Where the type has None, that stands for
what is absent, for numbers below 0, and for enums that are not specified.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Self, TypeVar, cast, get_args, get_type_hints

from headrace_common.core.errors import HeadraceError, error_for
from headrace_common.core.ids import TopicPartition

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

M = TypeVar("M")
Read = Callable[[Any], Any]

UNKNOWN: Final = "unknown"
"""An enum's value that this version does not know."""


class Made(Generic[M]):
    """
    A value that is made of a message.

    ``sources``, given with the bases, name the fields of the message, with dots for those of a message in it; or they
    read the message. ``inside`` names a message in it that has what the message itself has not.
    """

    __slots__ = ()
    _inside: ClassVar[str] = ""
    _sources: ClassVar[Mapping[str, str | Read]] = {}

    def __init_subclass__(cls, inside: str = "", **sources: str | Read) -> None:
        super().__init_subclass__()
        if inside or sources:  # a dataclass with slots is made a second time, without them
            cls._inside, cls._sources = inside, sources

    @classmethod
    def of(cls, message: M, **given: Any) -> Self:
        """From the wire; what is ``given`` is not read."""
        plan = _plan(cast("Any", cls), cast("Any", message).DESCRIPTOR, tuple(given))
        return cls(**given, **{name: read(message) for name, read in plan})


class Told(Made[M]):
    """A value that keeps what it was made of; not equal for it, nor printed, copied or pickled with it."""

    __slots__ = ("_wire",)
    _wire: M

    @property
    def wire(self) -> M:
        """The message of the admin service: ``headrace_common.rpc.answers`` makes of it the JSON that REST answers."""
        return self._wire

    @classmethod
    def of(cls, message: M, **given: Any) -> Self:
        """From the wire; what is ``given`` is not read."""
        value = super().of(message, **given)
        object.__setattr__(value, "_wire", message)
        return value


@cache
def _plan(kind: Any, message: Descriptor, given: tuple[str, ...]) -> tuple[tuple[str, Read], ...]:
    """How each field of a value is read, but those that are given."""
    hints, known = get_type_hints(kind), message.fields_by_name
    inner = {name: f"{kind._inside}.{name}" for name in hints if kind._inside and name not in known}
    return tuple(
        (name, _reader(kind._sources.get(name) or inner.get(name, name), hints[name], message))
        for name in (field.name for field in fields(kind))
        if name not in given
    )


def _reader(source: str | Read, hint: Any, message: Any) -> Read:
    if callable(source):
        return source
    types = (hint, *get_args(hint))
    optional, known = type(None) in types, message.fields_by_name
    if TopicPartition in types:
        return _partition
    if HeadraceError in types:
        return _error
    name, _, rest = source.partition(".")
    if name not in known:
        raise TypeError(f"{message.name} has no field {name!r}, so it has to be given")
    if rest:
        inner = _reader(rest, hint, known[name].message_type)
        return lambda m: None if optional and not m.HasField(name) else inner(getattr(m, name))
    return _read_field(known[name], types, optional=optional)


def _read_field(field: Any, types: tuple[Any, ...], *, optional: bool) -> Read:
    name, kind = field.name, next((one for one in types if hasattr(one, "of")), None)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        return lambda m: dict(getattr(m, name))
    if field.is_repeated:
        return lambda m: tuple(getattr(m, name) if kind is None else map(kind.of, getattr(m, name)))
    if field.enum_type is not None:
        return lambda m: name_of(field.enum_type, getattr(m, name), optional=optional)
    if field.has_presence:
        return lambda m: (getattr(m, name) if kind is None else kind.of(getattr(m, name))) if m.HasField(name) else None
    if optional and int in types:
        return lambda m: None if (number := getattr(m, name)) < 0 else number
    return attrgetter(name)


def _partition(message: Any) -> TopicPartition:
    number = message.partition
    return TopicPartition(message.topic, number if isinstance(number, int) else number.partition)


def _error(message: Any) -> HeadraceError | None:
    code = message.error
    if not isinstance(code, int):
        return error_for(code.code, code.message) if message.HasField("error") else None
    return error_for(code, message.message) if code else None


def name_of(kind: Any, value: int, *, optional: bool = False) -> str | None:
    """An enum's value in small letters."""
    known = kind.values_by_number.get(value)
    if known is None or known.name.endswith("_UNSPECIFIED"):
        return None if optional and known is not None else UNKNOWN
    name: str = known.name
    return name.removeprefix("TXN_").removesuffix("_CONFIG").lower()

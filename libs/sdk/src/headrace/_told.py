"""How values are made of the admin service's messages, and the message that some of them keep."""

from __future__ import annotations

from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

M = TypeVar("M")
V = TypeVar("V")


class Told(Generic[M]):
    """A value that keeps what it was made of; not equal for it, nor printed, copied or pickled with it."""

    __slots__ = ("_wire",)
    _wire: M

    @property
    def wire(self) -> M:
        """The message of the admin service: ``headrace_common.rpc.answers`` makes of it the JSON that REST answers."""
        return self._wire


def told(kind: type[V], message: Message, **given: Any) -> V:
    """
    A value of ``kind``: what is not ``given`` is taken from the message's fields of the same names. Absent is None,
    several are a tuple. A ``Told`` keeps the message.
    """
    for name, field in _sources(cast("Any", kind), message.DESCRIPTOR):
        if name in given:
            continue
        if field.has_presence and not message.HasField(name):
            given[name] = None
        else:
            taken = getattr(message, name)
            given[name] = tuple(taken) if field.is_repeated else taken
    value = kind(**given)
    if isinstance(value, Told):
        object.__setattr__(value, "_wire", message)
    return value


@cache
def _sources(kind: Any, message: Descriptor) -> tuple[tuple[str, Any], ...]:
    """Names of the value's fields with those of the message; None: it has none of this name, so it has to be given."""
    return tuple((field.name, message.fields_by_name.get(field.name)) for field in fields(kind))

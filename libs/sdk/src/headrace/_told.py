"""How values are made of the admin service's messages, and the message that some of them keep."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
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
    names = (field.name for field in fields(kind) if field.name not in given)  # type: ignore[arg-type]
    value = kind(**{name: _member(message, name) for name in names}, **given)
    if isinstance(value, Told):
        object.__setattr__(value, "_wire", message)
    return value


def _member(message: Message, name: str) -> Any:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.has_presence and not message.HasField(name):
        return None
    value = getattr(message, name)
    return tuple(value) if field.is_repeated else value

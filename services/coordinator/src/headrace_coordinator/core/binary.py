"""
Forms of values in bytes, of which ``records`` and ``transactions.records`` declare what they write.

A form packs a value and takes it back; forms of records are made of forms of fields. All numbers are big-endian. What
is written is read back, anything else is refused.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from operator import attrgetter
from typing import Any, Final, Generic, ParamSpec, TypeVar

from headrace_common.core.errors import DataLost, UnsupportedVersion

T = TypeVar("T")
U = TypeVar("U")
P = ParamSpec("P")

_ABSENT: Final = b"\xff" * 4


class RecordDamaged(DataLost):
    """A record in an internal topic is not what a coordinator writes."""


def readable(what: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Bytes that the function cannot read are ``RecordDamaged``; ``what`` names them, with the function's arguments."""

    def decorate(read: Callable[P, T]) -> Callable[P, T]:
        @wraps(read)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return read(*args, **kwargs)
            except (struct.error, ValueError, IndexError) as error:
                raise RecordDamaged(f"{what.format(*args)} cannot be read: {error}") from error

        return checked

    return decorate


def check_format(written: int, newest: int, oldest: int = 1) -> None:
    """Formats above ``newest`` are of a newer version, those below ``oldest`` never were."""
    if written > newest:
        raise UnsupportedVersion(
            f"a coordinator's record has format {written}, this version reads up to {newest}; upgrade the node"
        )
    if written < oldest:
        raise ValueError(f"it has format {written}; they begin with {oldest}")


class Reader:
    """
    Bytes and how far they have been read.

    Raises:
        ValueError: from each method, if the bytes end too early or late.
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        """The next bytes."""
        start, self._at = self._at, self._at + size
        if self._at > len(self._data):
            raise ValueError(f"it ends at byte {len(self._data)}, where {self._at} were expected")
        return self._data[start : self._at]

    def blob(self) -> bytes:
        """Bytes whose length stands before them."""
        return self.take(int.from_bytes(self.take(4), "big"))

    def take_rest(self) -> bytes:
        """All that is left."""
        return self.take(len(self._data) - self._at)

    def count(self) -> range:
        """As many steps as entries follow; not more than there are bytes left, so that rubbish costs nothing."""
        size = int.from_bytes(self.take(4), "big")
        if size > len(self._data) - self._at:
            raise ValueError(f"it announces {size} entries in {len(self._data) - self._at} bytes")
        return range(size)

    def is_absent(self) -> bool:
        """Whether the next is an optional value that is not there; then it is taken."""
        absent = self._data.startswith(_ABSENT, self._at)
        self._at += absent * len(_ABSENT)
        return absent

    @property
    def has_more(self) -> bool:
        """Whether anything is left."""
        return self._at < len(self._data)

    def end(self) -> None:
        """Nothing may be left."""
        if self._at != len(self._data):
            raise ValueError(f"it has {len(self._data) - self._at} bytes more than it should")


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How values of one kind stand in bytes."""

    pack: Callable[[T], bytes]
    take: Callable[[Reader], T]

    def of(self, dump: Callable[[U], T], load: Callable[[T], U]) -> Form[U]:
        """The same bytes for another type, which ``dump`` and ``load`` translate."""
        pack, take = self.pack, self.take
        return Form(lambda value: pack(dump(value)), lambda into: load(take(into)))


def _number(code: str) -> Form[int]:
    number = struct.Struct(">" + code)
    return Form(number.pack, lambda into: number.unpack(into.take(number.size))[0])


U8: Final = _number("B")
I32: Final = _number("i")
I64: Final = _number("q")


def _pack_blob(value: bytes) -> bytes:
    return len(value).to_bytes(4, "big") + value


def _pack_text(value: str) -> bytes:
    encoded = value.encode()
    return len(encoded).to_bytes(4, "big") + encoded


def _pack_optional_text(value: str | None) -> bytes:
    return _ABSENT if value is None else _pack_text(value)


BLOB: Final = Form(_pack_blob, Reader.blob)
"""Any bytes, their length before them."""
TEXT: Final = Form(_pack_text, lambda into: into.blob().decode())
OPTIONAL_TEXT: Final = Form(_pack_optional_text, lambda into: None if into.is_absent() else into.blob().decode())


def _take_i32s(into: Reader) -> tuple[int, ...]:
    size = len(into.count())
    return struct.unpack(f">{size}i", into.take(4 * size))


I32S: Final[Form[Sequence[int]]] = Form(
    lambda values: struct.pack(f">I{len(values)}i", len(values), *values), _take_i32s
)


def many(form: Form[T]) -> Form[Iterable[T]]:
    """Values of one form, their count before them; they come back as a tuple."""
    pack, take = form.pack, form.take

    def pack_all(values: Iterable[T]) -> bytes:
        packed = [pack(value) for value in values]
        return len(packed).to_bytes(4, "big") + b"".join(packed)

    return Form(pack_all, lambda into: tuple([take(into) for _ in into.count()]))


def pair(first: Form[T], second: Form[U]) -> Form[tuple[T, U]]:
    """Two values, one after the other."""
    return Form(
        lambda values: first.pack(values[0]) + second.pack(values[1]),
        lambda into: (first.take(into), second.take(into)),
    )


def fields(make: Callable[..., T], *forms: Form[Any]) -> Form[T]:
    """The first fields of a class, in the order in which it declares them: one form for each."""
    names = make.__match_args__[: len(forms)]  # type: ignore[attr-defined]  # of dataclasses and named tuples
    values = attrgetter(*names)
    packs = [form.pack for form in forms]
    takes = [form.take for form in forms]
    return Form(
        lambda value: b"".join([pack(field) for pack, field in zip(packs, values(value), strict=True)]),
        lambda into: make(*[take(into) for take in takes]),
    )


class KeyForm:
    """Keys of one kind: format u8, kind u8, a name with its length u16 before it, and the numbers of ``tail``."""

    def __init__(self, format_number: int, kind: int, tail: str = "") -> None:
        self.head = bytes((format_number, kind))
        self._tail = struct.Struct(">" + tail)

    def pack(self, name: str, *tail: Any) -> bytes:
        text = name.encode()
        return self.head + len(text).to_bytes(2, "big") + text + self._tail.pack(*tail)

    def unpack(self, key: bytes) -> tuple[Any, ...]:
        """Name and tail of a key that begins with ``head``; ValueError: of another length than it says."""
        end = 4 + int.from_bytes(key[2:4], "big")
        if len(key) != end + self._tail.size:
            raise ValueError(f"it has {len(key)} bytes instead of {end + self._tail.size}")
        return key[4:end].decode(), *self._tail.unpack_from(key, end)

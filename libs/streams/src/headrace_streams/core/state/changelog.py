"""
State as rows of a changelog: what a commit adds to the topic, what the cold tier holds, and what a restore reads.

A key is the length of the store's name (1 byte), the name, and the store's own key. The key ``0x00`` is the task's own:
its value says which positions and event times belong to the state.
"""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import ormsgpack

from headrace_common.core.errors import ErrorCode, Rejected
from headrace_streams.core.errors import StateFailed
from headrace_streams.core.state.store import Changes

CONTROL: Final = b"\x00"
TOPIC_BYTES_MAX: Final = 8 << 20
"""``max.message.bytes`` of changelogs."""
ROW_BYTES_MAX: Final = TOPIC_BYTES_MAX - 4_096
"""Of key and value; the rest is for what a batch has besides."""
_VERSION: Final = 1
_REMARK: Final = "event times: "
_REMARK_BYTES_MAX: Final = 4_000
"""A coordinator takes 4,096 by default."""


class NotReadable(Rejected, code=ErrorCode.INVALID_RECORD):
    """A row was written by a newer version, or by something else."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a task is, as one of its commits says."""

    positions: Mapping[str, int] = field(default_factory=dict)
    """By topic: the offset of the next record of the task's partition."""
    watermarks: Mapping[str, int] = field(default_factory=dict)
    """By input: event times, ms."""
    basis: Mapping[str, str] = field(default_factory=dict)
    """What the state belongs to: the ids of topics, and in which form each store is kept."""

    def encode(self) -> bytes:
        """As the value of the control row."""
        row = {"v": _VERSION, "p": dict(self.positions), "w": dict(self.watermarks), "b": dict(self.basis)}
        return ormsgpack.packb(row)

    @staticmethod
    def decode(value: bytes) -> Progress:
        """
        Raises:
            NotReadable: of another version, or no control row.
        """
        try:
            row = ormsgpack.unpackb(value)
            if row["v"] != _VERSION:
                raise NotReadable("the changelog's control row is of a newer version of Streams: upgrade this worker")
            return Progress(row["p"], row["w"], row["b"])
        except (ValueError, TypeError, KeyError) as error:
            raise NotReadable(f"the changelog's control row was not written by Streams: {error!r}") from error


def remark(watermarks: Mapping[str, int]) -> str:
    """
    Event times of a task without a changelog, as the metadata of its positions; empty where they are more than fit,
    which takes about 300 inputs: then they begin anew with the task.
    """
    text = _REMARK + b64encode(zlib.compress(ormsgpack.packb(dict(watermarks)))).decode()
    return text if len(text) <= _REMARK_BYTES_MAX else ""


def is_remark(text: str) -> bool:
    """Whether metadata of a position are event times of a task."""
    return text.startswith(_REMARK)


def of_remark(text: str) -> dict[str, int]:
    """The inverse; none if the positions were set by something else."""
    if not is_remark(text):
        return {}
    try:
        found: dict[str, int] = ormsgpack.unpackb(zlib.decompress(b64decode(text.removeprefix(_REMARK))))
    except (ValueError, zlib.error) as error:
        raise NotReadable(f"event times in the metadata of positions were not written by Streams: {error}") from error
    return found


def prefix(store: str) -> bytes:
    """What all keys of a store begin with."""
    name = store.encode()
    assert 0 < len(name) < 256, "names of stores are checked when the program is built"
    return bytes([len(name)]) + name


def rows(changes: Mapping[str, Changes], progress: Progress) -> Changes:
    """The rows of one commit: all stores, and the control row at the end."""
    written = [(prefix(store) + key, value) for store, of_store in changes.items() for key, value in of_store]
    return [*written, (CONTROL, progress.encode())]


def check_sizes(written: Changes, key_at: Callable[[str], int] = lambda store: 0) -> None:
    """
    Args:
        key_at: how many bytes stand before the record's key in the keys of a store.

    Raises:
        StateFailed: a row is larger than a changelog takes; names store and key.
    """
    for key, value in written:
        size = len(key) + len(value or b"")
        if size > ROW_BYTES_MAX:
            store = key[1 : 1 + key[0]].decode()
            of = key[1 + key[0] + key_at(store) :]
            raise StateFailed(
                f"the state {store!r} of key {of!r:.100} has {size:,} bytes, and at most {ROW_BYTES_MAX:,} can be "
                "kept: keep less for each key, as with collect(limit=)"
            )


def newest(found: Iterable[tuple[bytes, bytes | None]]) -> dict[bytes, bytes | None]:
    """Of each key the last row."""
    return dict(found)

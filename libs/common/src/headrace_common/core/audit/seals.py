"""
Seals: a node signs how far its chain goes, with the key of its session. Who can write the topic cannot make one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from headrace_common.core.audit.canonical import write_line
from headrace_common.core.audit.chain import VERSION, Start, read_start, start_fields
from headrace_common.core.errors import Rejected

Sign: TypeAlias = Callable[[bytes], bytes]
"""Ed25519 with the session key of the node: 64 bytes for a message."""
Check: TypeAlias = Callable[[bytes, bytes, bytes], bool]
"""Whether the public key (32 bytes) has made, for the message, the signature: in this order."""

_CONTEXT: Final = b"headrace audit seal 1\n"
"""Before what is signed: the same key signs session tokens, and nothing that begins so is one."""
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SIGNATURE: Final = re.compile(r"[0-9a-f]{128}")
_NAMES: Final = frozenset({"v", "node", "start", "first", "last", "head", "time", "ends", "signature"})


@dataclass(frozen=True, slots=True)
class Seal:
    """The events from ``first`` to ``last`` are those of which ``head`` is the end."""

    start: Start
    first: int
    """The one after the last of the seal before. Beyond ``last``: nothing has happened since, and the start ends."""
    last: int
    head: str
    """The digest of the event ``last``, which has those of all before in it."""
    time_ms: int
    """Unix time."""
    ends: bool = False
    """The node has stopped in order; nothing comes after it."""


def _fields(seal: Seal) -> dict[str, Any]:
    return {
        "v": VERSION,
        **start_fields(seal.start),
        "first": seal.first,
        "last": seal.last,
        "head": seal.head,
        "time": seal.time_ms,
        "ends": seal.ends,
    }


def message_of(seal: Seal) -> bytes:
    """What is signed."""
    return _CONTEXT + write_line(_fields(seal))


def write_seal(seal: Seal, sign: Sign) -> bytes:
    """The line of a seal."""
    return write_line({**_fields(seal), "signature": sign(message_of(seal)).hex()})


def read_seal(fields: dict[str, Any]) -> tuple[Seal, bytes]:
    """
    A seal and its signature, which is not checked.

    Raises:
        Rejected: it is no seal, or one of a newer version.
    """
    if fields.get("v") != VERSION or fields.keys() != _NAMES:
        raise Rejected("this is no seal, or one of another version")
    seal = Seal(read_start(fields), *(fields[name] for name in ("first", "last", "head", "time", "ends")))
    signature = fields["signature"]
    numbers = all(type(number) is int and number >= 0 for number in (seal.first, seal.last, seal.time_ms))
    texts = isinstance(seal.head, str) and isinstance(signature, str) and isinstance(seal.ends, bool)
    if not (numbers and texts and _DIGEST.fullmatch(seal.head) and _SIGNATURE.fullmatch(signature)):
        raise Rejected("a seal has numbers, a digest and a signature")
    if seal.first > seal.last + seal.ends:
        raise Rejected("a seal is of some event, unless it ends a start")
    return seal, bytes.fromhex(signature)

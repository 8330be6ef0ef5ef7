"""
The one form in bytes of a line of the audit: JSON in ASCII, names sorted, no blanks. A hash of it is a hash of what it
says; two readers cannot read it differently.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from headrace_common.core.credential_forms import cut_credentials
from headrace_common.core.errors import Rejected

LINE_BYTES_MAX: Final = 384 << 10
_ENCODER: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False)


def write_line(document: dict[str, Any]) -> bytes:
    """
    The line, without its end.

    Raises:
        Rejected: there is a credential in it. What makes documents cuts them out; this is for where it forgets one.
    """
    if any(cut_credentials(text) != text for text in _texts(document)):
        raise Rejected("this event has an API key, a token or a private key in it, and such are never written")
    return _ENCODER.encode(document).encode("ascii")


def _texts(data: Any) -> Iterator[str]:
    if isinstance(data, str):
        yield data
    elif isinstance(data, dict):
        for name, value in data.items():
            yield name
            yield from _texts(value)
    elif isinstance(data, list):
        for value in data:
            yield from _texts(value)


def read_line(line: bytes) -> dict[str, Any]:
    """
    The inverse of ``write_line``.

    Raises:
        Rejected: it is no object of JSON, too long, or not in the one form; so a name that is there twice is refused.
    """
    if len(line) > LINE_BYTES_MAX:
        raise Rejected(f"a line of the audit has at most {LINE_BYTES_MAX} bytes, and this one {len(line)}")
    try:
        found = json.loads(line)
        same = isinstance(found, dict) and _ENCODER.encode(found).encode("ascii") == line
    except (ValueError, RecursionError):
        same = False
    if not same:
        raise Rejected("this is no line of the audit, or not in the form in which it was written")
    return dict(found)

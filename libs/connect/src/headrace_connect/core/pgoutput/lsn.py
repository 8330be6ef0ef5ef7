"""Places in the WAL of PostgreSQL, as numbers and as it writes them (``16/B374D848``)."""

from __future__ import annotations

import re
from typing import Final

_FORM: Final = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


def format_lsn(lsn: int) -> str:
    """As PostgreSQL writes it."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFF_FFFF:X}"


def parse_lsn(text: str) -> int:
    """
    The number of an LSN.

    Raises:
        ValueError: it is none.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        raise ValueError(f"{text!r} is no LSN; one is written like 16/B374D848")
    return int(form[1], 16) << 32 | int(form[2], 16)

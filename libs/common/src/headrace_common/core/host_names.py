"""
Which names in a header ``Host`` cannot be somebody else's: a page may have a name of its own lead to any address (DNS
rebinding), but nobody has localhost or an address lead anywhere.
"""

from __future__ import annotations

from ipaddress import ip_address
from urllib.parse import urlsplit


def name_of(authority: str) -> str:
    """Of ``name``, ``name:port``, ``address`` or ``[address]:port``; empty: it is none of these."""
    try:
        return (urlsplit(f"//{authority}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def is_nobodys(name: str) -> bool:
    """Whether it is localhost or an address."""
    if name == "localhost":
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True

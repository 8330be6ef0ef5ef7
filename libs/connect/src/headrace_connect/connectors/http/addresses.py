"""URLs and headers of requests, as settings say them: what is wrong with them, and how they are shown."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

_HEADER: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_OURS: Final = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
_CONTROL: Final = re.compile(r"[\x00-\x20\x7f]")


def check_url(url: str) -> SplitResult:
    """
    Raises:
        ValueError: it cannot be asked.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 - is looked at only when it is asked for
    except ValueError as error:
        raise ValueError(f"url cannot be used: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or _CONTROL.search(url):
        raise ValueError("url is http://HOST/PATH or https://HOST/PATH, without spaces")
    if "@" in parts.netloc:
        raise ValueError("url has a user in it, which all may read: set authorization instead")
    return parts


def check_headers(headers: Mapping[str, str]) -> None:
    """
    Raises:
        ValueError: one cannot be sent, or is not for settings.
    """
    for name, value in headers.items():
        if not _HEADER.fullmatch(name):
            raise ValueError(f"headers.{name[:80]} is no name of a header")
        if name.lower() in _OURS:
            raise ValueError(f"headers.{name} is set by the connector itself")
        if name.lower() == "authorization":
            raise ValueError("headers.authorization can be read by all: set authorization")
        check_header_value(f"headers.{name}", value)


def check_header_value(key: str, value: str) -> None:
    """
    Raises:
        ValueError: it would be another header, or no text of one. Does not show it.
    """
    if not value.isprintable() or not value.isascii():
        raise ValueError(f"{key} has characters that a header cannot have: ASCII without line ends")


def show_url(url: str) -> str:
    """Without its query, which may have a secret in it."""
    return url.partition("?")[0].partition("#")[0]

"""
Decides which requests may come from a web page, or from behind a name, that is not ours. Called by the gate for every
request, before its body is read.

A page may have a browser send requests here that need no permission: plain forms, and POSTs without a body. So what is
not only read needs a content type that a browser asks for first, and nobody answers that. A page may also let its own
name point here (DNS rebinding): the names in ``Host`` are a list. Addresses need not be in it, for nobody can have
another machine's address point here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers

from headrace_common.core.host_names import is_nobodys, name_of

ANY: Final = "*"
REQUEST_HEADER: Final = "x-headrace-request"
"""What changes something by a cookie has it, whatever its value: no page of another origin can send it."""
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_TAB: Final = "document"
_DEFAULT_PORTS: Final = {"http": ":80", "https": ":443"}
_SHOWN_MAX: Final = 80


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request gets no further than the gate; each service has its own form of it."""

    status: int
    """Of HTTP."""
    detail: str
    next_step: str
    """What to do instead."""


@dataclass(frozen=True, slots=True)
class Hosts:
    """The names by which this service may be asked for, beside localhost and addresses."""

    names: frozenset[str] = frozenset()
    """In lower case, without port."""
    how: str = "--hosts"
    """How a further name is added to them, for people."""

    @staticmethod
    def of(names: Iterable[str], how: str = "--hosts") -> Hosts:
        """As they are written in settings; ``*``: any."""
        return Hosts(frozenset(name.lower().rstrip(".") for name in names), how)

    def has(self, authority: str) -> bool:
        """Whether ``name``, ``name:port``, ``address`` or ``[address]:port`` may be asked for."""
        name = name_of(authority)
        return ANY in self.names or name in self.names or is_nobodys(name)


def find_host_refusal(headers: Headers, hosts: Hosts) -> Refusal | None:
    """What is answered to who asks by a name that is not ours; None: it is one."""
    host = headers.get("host", "")
    if hosts.has(host):
        return None
    step = (
        f"If this is a name of this service, add it to the setting hosts: {hosts.how}. Otherwise use an address, "
        "or localhost."
    )
    return Refusal(421, f"this service does not answer as {host[:_SHOWN_MAX]!r}", step)


def find_refusal(method: str, headers: Headers, hosts: Hosts, *, bodiless: bool) -> Refusal | None:
    """
    What is answered to a request that may not pass, by whatever name it asks; None: it may.

    Args:
        bodiless: whether changes without a body need no content type. A page may have those sent too, so only what
            browsers say of it (``Origin``, ``Sec-Fetch-Site``) keeps them out.
    """
    if method in _READING:
        return None
    return _foreign_page(headers, hosts) or (None if bodiless and not _has_body(headers) else find_not_json(headers))


def find_cookie_refusal(method: str, headers: Headers, hosts: Hosts) -> Refusal | None:
    """
    What is answered to a request that shows a cookie and may not use it; None: it may.

    Browsers send cookies by themselves, and know ports and neighbouring names for one site. So a page of another origin
    may have people come here by a link, and nothing else; not in a frame either.
    """
    own = headers.get("sec-fetch-site", "none").lower() in _OWN_SITES
    reading = method in _READING
    by_link = headers.get("sec-fetch-mode", "").lower() == "navigate" and _fills_a_tab(headers)
    if not own and not (reading and by_link):
        return Refusal(
            403, "a page of another origin may not use the login of this browser", "Use a page of this service."
        )
    if reading:
        return None
    if REQUEST_HEADER not in headers:
        step = "Send it, with any value: pages of other origins cannot. Or show an API key, and no cookie."
        return Refusal(403, "the header X-Headrace-Request is missing, which changes by a cookie need", step)
    return _foreign_page(headers, hosts) or find_not_json(headers)


def find_not_json(headers: Headers) -> Refusal | None:
    """What is answered where the content type is not that of JSON; None: it is."""
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type == "application/json":
        return None
    step = "Send the header Content-Type: application/json, also without a body; foreign pages cannot."
    said = f"is {content_type[:_SHOWN_MAX]!r}" if content_type else "is missing"
    return Refusal(415, f"the content type {said}", step)


def _fills_a_tab(headers: Headers) -> bool:
    """Browsers that do not say what they ask for have been few for years, and show no page of ours in a frame."""
    return headers.get("sec-fetch-dest", _TAB).lower() == _TAB


def _has_body(headers: Headers) -> bool:
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _foreign_page(headers: Headers, hosts: Hosts) -> Refusal | None:
    origin = headers.get("origin")
    cross_site = headers.get("sec-fetch-site", "").lower() == "cross-site"
    if not cross_site and (origin is None or _is_own(origin, headers.get("host", ""), hosts)):
        return None
    page = "a page of another site" if origin is None else f"the page {origin[:_SHOWN_MAX]!r}"
    step = (
        "Use the page of this service, the command or the SDK. If a proxy changes the header Host, have it pass Host "
        "on, or add the name that people use to the setting hosts."
    )
    return Refusal(403, f"{page} may not change anything here", step)


def _is_own(origin: str, host: str, hosts: Hosts) -> bool:
    """Whether a page has the address that it asks, or one that was set."""
    scheme, _, authority = origin.lower().partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    if default is None:
        return False
    own = authority.removesuffix(default)
    return own == host.lower().removesuffix(default) or own in hosts.names


def is_public_name(authority: str) -> bool:
    """Whether ``name:port`` is neither localhost nor an address: these belong to more programs than this one."""
    name = name_of(authority)
    return bool(name) and not is_nobodys(name)

"""
Decides what of the access rules stands on a page: rules, roles that are bound, roles of one's own and blocks, in this
order, each by principal or name. Called for every page; nothing is kept between two of them.
"""

from __future__ import annotations

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from operator import itemgetter
from typing import Final, TypeAlias, TypeVar

from headrace_common.core.access.changes import Rule
from headrace_common.core.access.grants import Grant
from headrace_common.core.access.principal import Grantee, Principal
from headrace_common.core.access.roles import Binding, Role
from headrace_common.core.access.state import Access
from headrace_common.core.errors import Rejected

PAGE_MAX: Final = 1_000
G = TypeVar("G", bound=Grantee)
Shown: TypeAlias = Callable[[Grantee | Role], bool]
Entry: TypeAlias = Rule | Binding | Role | Principal
Place: TypeAlias = tuple[str, str, str]
"""Where an entry stands: the kind, whose it is, and the entry itself."""
START: Final[Place] = ("", "", "")
_RULES, _BINDINGS, _ROLES, _BLOCKED = "1234"
_CHARS_MAX: Final = 300
"""Of an entry's text in its place; roles may be given on a thousand targets."""


@dataclass(frozen=True, slots=True)
class Page:
    """Some entries in their order."""

    entries: tuple[Entry, ...]
    next: str
    """What the following page is asked after; empty: this is the last."""


def make_page(access: Access, shown: Shown, of: Grantee | None, limit: int, after: str) -> Page:
    """
    The entries after ``after`` that are ``shown``.

    Args:
        of: only what is said of this one, and the roles that it is given; None: all.
        limit: entries and targets of roles, about: an entry is never cut. 0: ``PAGE_MAX``, which is the most.

    Raises:
        Rejected: no page has said ``after``, or the limit is none.
    """
    if not 0 <= limit <= PAGE_MAX:
        raise Rejected(f"a page has 1 to {PAGE_MAX} entries, not {limit}; 0 is {PAGE_MAX}")
    taken: list[Entry] = []
    room, last = limit or PAGE_MAX, START
    for place, entry in _entries(access, shown, of, _read(after)):
        if room <= 0:
            return Page(tuple(taken), _write(last))
        taken.append(entry)
        last = place
        room -= 1 + (len(entry.targets) if isinstance(entry, Binding) else 0)
    return Page(tuple(taken), "")


def _entries(access: Access, shown: Shown, of: Grantee | None, after: Place) -> Iterator[tuple[Place, Entry]]:
    kind, whose, _ = after
    given: Mapping[Grantee, frozenset[Grant] | frozenset[Binding]]
    for each, given in ((_RULES, access.rules), (_BINDINGS, access.bindings)):
        if each < kind:
            continue
        for text, grantee in _ordered(given if of is None else {of} & given.keys(), whose if each == kind else ""):
            if of is None and not shown(grantee):
                continue
            for item, one in sorted(((_shorten(str(one)), one) for one in given[grantee]), key=itemgetter(0)):
                place = (each, text, item)
                if place > after:
                    yield place, one if isinstance(one, Binding) else Rule(grantee, one)
    named = None if of is None else {binding.role for binding in access.bindings.get(of, ())}
    for name in sorted(access.roles):
        if (place := (_ROLES, name, "")) > after and (shown(access.roles[name]) if named is None else name in named):
            yield place, access.roles[name]
    for text, blocked in _ordered(access.blocked, ""):
        if (place := (_BLOCKED, text, "")) > after and (shown(blocked) if of is None else blocked == of):
            yield place, blocked


def _ordered(grantees: Iterable[G], start: str) -> list[tuple[str, G]]:
    """By their texts, from ``start`` on."""
    return sorted(((text, one) for one in grantees if (text := str(one)) >= start), key=itemgetter(0))


def _shorten(text: str) -> str:
    return text if len(text) <= _CHARS_MAX else text[:_CHARS_MAX] + sha256(text.encode()).hexdigest()


def _write(place: Place) -> str:
    return urlsafe_b64encode(json.dumps(place, ensure_ascii=False).encode()).decode()


def _read(after: str) -> Place:
    if not after:
        return START
    try:
        place = tuple(json.loads(urlsafe_b64decode(after)))
    except (ValueError, TypeError, RecursionError):
        place = ()
    if [*map(type, place)] != [str, str, str]:
        raise Rejected("after takes what the page before has said as next, and nothing else")
    return place

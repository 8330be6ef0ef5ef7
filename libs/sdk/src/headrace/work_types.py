"""Frozen values about named work: what a ``WorkGroup`` is told to share, and what it tells its application."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from headrace.errors import InvalidConfig

ITEMS_MAX: Final = 20_000
ITEM_ID_LENGTH_MAX: Final = 249
WEIGHT_MAX: Final = 1_000_000
STANDBYS_MAX: Final = 16
TERMS_MAX: Final = 1_000
TERM_NAME_LENGTH_MAX: Final = 249
TERM_LENGTH_MAX: Final = 255
NONE: Final[frozenset[str]] = frozenset()


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One thing that one member of a work group does at a time."""

    id: str
    weight: int = 1
    """Members get about equal weights."""
    stateful: bool = False
    """Its owner keeps state, which another member has to catch up with before it takes the item from a living one."""
    standbys: int = 0
    """How many other members follow its state."""


@dataclass(frozen=True, slots=True)
class Declaration:
    """What there is to do, as members of one version of a program say it."""

    items: tuple[WorkItem, ...]
    fingerprint: str
    """Tells declarations apart: whatever differs has another one."""
    version: int | None = None
    """Of two, the higher is newer. None: whichever the group saw first last."""
    acceptable_recovery_lag: int = 10_000
    """Behind by at most so much a member may take a stateful item from a living one."""
    max_warmup: int = 2
    """So many items are prepared at a time on members that are to take them over."""
    terms: Mapping[str, str] = field(default_factory=dict)
    """What all members have to agree on, by name: who says of one something else than a member that is there cannot
    join."""


@dataclass(frozen=True, slots=True)
class GivenItem:
    """An item that this member is to do."""

    id: str
    epoch: int
    """Above that of everybody who had the item before: the fencing token of what is written for it."""
    unended: tuple[str, ...] = ()
    """Transactional ids of members that had it and were put out: end what they left open, then ``report(ended=…)``."""


@dataclass(frozen=True, slots=True)
class WorkShare:
    """What a member is to do and to follow, whole."""

    active: tuple[GivenItem, ...] = ()
    standby: frozenset[str] = NONE
    warm_up: frozenset[str] = NONE


@dataclass(frozen=True, slots=True)
class WorkChange:
    """What has changed for this member since it asked last."""

    assigned: tuple[GivenItem, ...] = ()
    """Do these from now on."""
    raised: tuple[GivenItem, ...] = ()
    """It does these already; their epoch is another one, or ``unended``."""
    revoked: frozenset[str] = NONE
    """Stop doing these, then ``give_up`` each; they are its own until then."""
    lost: frozenset[str] = NONE
    """It is out of the group, and others have these: stop at once, commit nothing, then ``give_up`` each."""
    standby: frozenset[str] = NONE
    """All that it is to follow from now on."""
    warm_up: frozenset[str] = NONE
    """All that it is to follow from now on, and takes over when it has caught up."""


def declare(
    items: Iterable[WorkItem | str],
    *,
    fingerprint: str | None = None,
    version: int | None = None,
    acceptable_recovery_lag: int = 10_000,
    max_warmup: int = 2,
    terms: Mapping[str, str] | None = None,
) -> Declaration:
    """
    What there is to do; items that need no more than a name are texts.

    Args:
        fingerprint: None: made from all the rest.
        terms: what all members have to agree on; at most 1,000, of at most 255 characters each.

    Raises:
        InvalidConfig: what is wrong, all of it.
    """
    if isinstance(items, str):
        raise InvalidConfig(f"items takes several items, not one text: [{items!r}]")
    listed = tuple(WorkItem(item) if isinstance(item, str) else item for item in items)
    agreed = dict(terms or {})
    wrong = [
        *_find_problems(listed),
        *_find_numbers(version, acceptable_recovery_lag, max_warmup),
        *_find_terms(agreed),
    ]
    if fingerprint is not None and (not isinstance(fingerprint, str) or not 1 <= len(fingerprint) <= 255):
        wrong.append(f"fingerprint takes a text of 1 to 255 characters, not {fingerprint!r}")
    if wrong:
        raise InvalidConfig("; ".join(wrong[:10]))
    if fingerprint is None:
        said = (sorted((i.id, i.weight, i.stateful, i.standbys) for i in listed), acceptable_recovery_lag, max_warmup)
        more = (sorted(agreed.items()),) if agreed else ()
        fingerprint = sha256(repr((said, version, *more)).encode()).hexdigest()
    return Declaration(listed, fingerprint, version, acceptable_recovery_lag, max_warmup, agreed)


def _find_terms(terms: Mapping[Any, Any]) -> Iterable[str]:
    if len(terms) > TERMS_MAX:
        yield f"there are {len(terms)} terms; {TERMS_MAX} is the most"
    for name, value in terms.items():
        if not isinstance(name, str) or not 1 <= len(name) <= TERM_NAME_LENGTH_MAX:
            yield f"a term's name is a text of 1 to {TERM_NAME_LENGTH_MAX} characters, not {name!r}"
        elif not isinstance(value, str) or len(value) > TERM_LENGTH_MAX:
            yield f"term {name!r} takes a text of at most {TERM_LENGTH_MAX} characters, not {value!r}"


def _find_numbers(version: int | None, lag: int, warmup: int) -> Iterable[str]:
    checked = (("version", version, 1), ("acceptable_recovery_lag", lag, 0), ("max_warmup", warmup, 1))
    for name, value, low in checked:
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < low):
            yield f"{name} takes a whole number from {low}, not {value!r}"


def _find_problems(items: tuple[Any, ...]) -> Iterable[str]:
    if len(items) > ITEMS_MAX:
        yield f"there are {len(items)} items; {ITEMS_MAX} is the most"
    seen: set[str] = set()
    for item in items:
        if not isinstance(item, WorkItem):
            yield f"items takes texts and WorkItems, not {item!r}"
            continue
        if not isinstance(item.id, str) or not 1 <= len(item.id) <= ITEM_ID_LENGTH_MAX:
            yield f"an item's id is a text of 1 to {ITEM_ID_LENGTH_MAX} characters, not {item.id!r}"
        elif item.id in seen:
            yield f"item {item.id!r} is there twice"
        else:
            seen.add(item.id)
        for name, value, low, high in (
            ("weight", item.weight, 1, WEIGHT_MAX),
            ("standbys", item.standbys, 0, STANDBYS_MAX),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
                yield f"item {item.id!r}: {name} takes {low} to {high}, not {value!r}"
        if item.standbys and not item.stateful:
            yield f"item {item.id!r} has standbys and no state; say stateful=True, or leave standbys out"

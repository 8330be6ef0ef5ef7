"""
What a process sees callers do before its cluster is closed, and which rights are used: bounded, and in memory alone.

Pure: times are given. ``Control`` writes it down, ``together`` puts several processes' into one report, and ``unused``
says which rules nobody needed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple, TypeVar

from headrace_common.core.access.changes import Rule
from headrace_common.core.access.explain import covers
from headrace_common.core.access.grants import Effect
from headrace_common.core.access.principal import ANONYMOUS, Principal
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.state import Caller

OBSERVED_MAX: Final = 10_000
"""Of each kind that one process keeps, and of each that a report has."""
DAY_MS: Final = 24 * 60 * 60 * 1_000
_SHOWN_CHARS_MAX: Final = 255

K = TypeVar("K", bound=Hashable)


class Refusal(NamedTuple):
    """Something that a closed cluster would refuse."""

    principal: str
    host: str
    """The address that it came from; empty: not known."""
    operation: Operation
    type: ResourceType
    name: str


class Stranger(NamedTuple):
    """Somebody who comes without a credential that is taken, or in plain text."""

    host: str
    wrong: bool
    """It shows one that is not valid: of another cluster, over, or deleted."""
    plain: bool = False
    """It comes in plain text to a cluster that is moved to TLS, whatever it shows."""


class Use(NamedTuple):
    """A right that rules gave, and that was used."""

    principal: str
    operation: Operation
    type: ResourceType
    name: str


@dataclass(frozen=True, slots=True)
class Times:
    """When something was seen, in ms of Unix time, and how often it was asked for. A stream asks once a minute."""

    first_ms: int
    last_ms: int
    count: int = 1

    def and_(self, other: Times) -> Times:
        return Times(min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms), self.count + other.count)


@dataclass(frozen=True, slots=True)
class Report:
    """What one process has seen, or several."""

    since_ms: int | None = None
    """It has looked from then on, without a gap; None: it does not look, for its cluster is open."""
    refusals: Mapping[Refusal, Times] = field(default_factory=dict)
    strangers: Mapping[Stranger, Times] = field(default_factory=dict)
    uses: Mapping[Use, Times] = field(default_factory=dict)
    groups: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Of who used something: the groups of its token."""
    more: bool = False
    """There was more than has room."""

    def within(self, from_ms: int) -> Report:
        """Only what was seen from then on; the latest first."""
        return replace(
            self,
            refusals=_latest(self.refusals, from_ms),
            strangers=_latest(self.strangers, from_ms),
            uses=_latest(self.uses, from_ms),
        )

    def of(self, shown: Callable[[str], bool]) -> Report:
        """Only what is about principals that are ``shown``."""
        return replace(
            self,
            refusals={one: times for one, times in self.refusals.items() if shown(one.principal)},
            strangers=self.strangers if shown(str(ANONYMOUS)) else {},
            uses={one: times for one, times in self.uses.items() if shown(one.principal)},
        )

    def without(self, accepted: Iterable[str]) -> Report:
        """Without the refusals and strangers that are of these principals or addresses."""
        names = frozenset(accepted)
        anonymous = str(ANONYMOUS) in names
        return replace(
            self,
            refusals={one: t for one, t in self.refusals.items() if names.isdisjoint((one.principal, one.host))},
            strangers={one: t for one, t in self.strangers.items() if not (anonymous or one.host in names)},
        )

    @property
    def loses(self) -> bool:
        """Whether closing the cluster would refuse something of this, or of what had no room."""
        return bool(self.refusals or self.strangers or self.more)


def together(reports: Iterable[Report]) -> Report:
    """What several processes have seen; it has looked since the last of them does. Of each kind the latest."""
    refusals: dict[Refusal, Times] = {}
    strangers: dict[Stranger, Times] = {}
    uses: dict[Use, Times] = {}
    groups: dict[str, frozenset[str]] = {}
    since: list[int | None] = []
    more = False
    for one in reports:
        since.append(one.since_ms)
        more = more or one.more
        _add(refusals, one.refusals)
        _add(strangers, one.strangers)
        _add(uses, one.uses)
        for principal, some in one.groups.items():
            groups[principal] = groups.get(principal, frozenset()) | some
    more = more or max(len(refusals), len(strangers)) > OBSERVED_MAX
    looking = [at for at in since if at is not None]
    all_look = bool(since) and len(looking) == len(since)
    return Report(max(looking) if all_look else None, refusals, strangers, uses, groups, more)


def unused(rules: Iterable[Rule], report: Report) -> Iterator[Rule]:
    """The allowing rules that nothing in ``report`` needed."""
    by_grantee: dict[str, list[Use]] = {}
    for use in report.uses:
        everyone = f"{use.principal.partition(':')[0]}:*"
        for grantee in (use.principal, everyone, *report.groups.get(use.principal, ())):
            by_grantee.setdefault(grantee, []).append(use)
    for rule in rules:
        if rule.grant.effect is Effect.ALLOW and not any(
            covers(rule.grant, use.operation, use.type, use.name) for use in by_grantee.get(str(rule.grantee), ())
        ):
            yield rule


class Observed:
    """
    Writes down for one process; one event loop.

    Of refusals and strangers new ones have no room once there are ``OBSERVED_MAX``, all of the last day, and it is said
    that there are more; of uses the latest are kept.
    """

    def __init__(self) -> None:
        self.since_ms: int | None = None
        self._refusals: OrderedDict[tuple[Caller, Operation, ResourceType, str], Times] = OrderedDict()
        self._strangers: OrderedDict[Stranger, Times] = OrderedDict()
        self._uses: OrderedDict[tuple[Principal, Operation, ResourceType, str], Times] = OrderedDict()
        self._groups: dict[Principal, frozenset[Principal]] = {}
        self._left_out_ms: int | None = None
        """When something last had no room."""

    def begin(self, now_ms: int) -> None:
        """From now on everything is seen."""
        self.since_ms = now_ms

    def refused(self, caller: Caller, operation: Operation, type: ResourceType, name: str, now_ms: int) -> None:
        """A closed cluster would not have done this."""
        self._note(self._refusals, (caller, operation, type, name[:_SHOWN_CHARS_MAX]), now_ms)

    def stranger(self, stranger: Stranger, now_ms: int) -> None:
        """Somebody came whom a closed cluster would not let in, or not in this way."""
        self._note(self._strangers, stranger, now_ms)

    def used(self, caller: Caller, operation: Operation, type: ResourceType, name: str, now_ms: int) -> None:
        """Rules allowed this, and it was asked for."""
        key = (caller.principal, operation, type, name[:_SHOWN_CHARS_MAX])
        times = self._uses.get(key)
        if times is None:
            if len(self._uses) >= OBSERVED_MAX:
                self._uses.popitem(last=False)
            self._uses[key] = Times(now_ms, now_ms)
            if caller.groups:
                self._note_groups(caller)
        else:
            self._uses[key] = Times(times.first_ms, now_ms, times.count + 1)
            self._uses.move_to_end(key)

    def report(self, still: Callable[[Caller, Operation, ResourceType, str], bool], now_ms: int) -> Report:
        """
        What was seen in the last day.

        Args:
            still: whether this would still be refused; what rules allow meanwhile is left out.
        """
        refusals: dict[Refusal, Times] = {}
        for (caller, operation, type, name), times in self._refusals.items():
            if still(caller, operation, type, name):
                one = Refusal(str(caller.principal), caller.host or "", operation, type, name)
                refusals[one] = times.and_(refusals[one]) if one in refusals else times
        return Report(
            self.since_ms,
            refusals,
            dict(self._strangers),
            {Use(str(who), operation, type, name): times for (who, operation, type, name), times in self._uses.items()},
            {str(who): frozenset(map(str, groups)) for who, groups in self._groups.items()},
            self._left_out_ms is not None and self._left_out_ms > now_ms - DAY_MS,
        ).within(now_ms - DAY_MS)

    def _note(self, kept: OrderedDict[K, Times], key: K, now_ms: int) -> None:
        times = kept.get(key)
        if times is not None:
            kept[key] = Times(times.first_ms, now_ms, times.count + 1)
            kept.move_to_end(key)
            return
        while len(kept) >= OBSERVED_MAX:
            oldest = next(iter(kept))
            if kept[oldest].last_ms > now_ms - DAY_MS:
                self._left_out_ms = now_ms
                return
            del kept[oldest]
        kept[key] = Times(now_ms, now_ms)

    def _note_groups(self, caller: Caller) -> None:
        if len(self._groups) >= OBSERVED_MAX:
            self._groups.clear()
        self._groups[caller.principal] = caller.groups


def _latest(kept: Mapping[K, Times], from_ms: int) -> dict[K, Times]:
    some = [(one, times) for one, times in kept.items() if times.last_ms > from_ms]
    return dict(sorted(some, key=lambda pair: -pair[1].last_ms))


def _add(kept: dict[K, Times], some: Mapping[K, Times]) -> None:
    for one, times in some.items():
        kept[one] = times.and_(kept[one]) if one in kept else times

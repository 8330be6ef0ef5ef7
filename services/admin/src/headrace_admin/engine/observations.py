"""
Who comes without a credential, what a closed cluster would refuse, and which rights are used: asked of every node.

A cluster is not closed while somebody would be cut off by that: who was seen lately is named, and the caller says whose
loss it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from headrace_admin.engine.accesses import Views
from headrace_admin.ports import Cluster, Nodes
from headrace_common.core.access.changes import Change, Rule, apply
from headrace_common.core.access.control import Rights
from headrace_common.core.access.explain import explain
from headrace_common.core.access.grants import host_of
from headrace_common.core.access.losses import Loss, find_losses
from headrace_common.core.access.observed import DAY_MS, Refusal, Report, Stranger, together, unused
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType, parse_principal
from headrace_common.core.access.refusals import REFUSALS_MAX, Remembered, check_id
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import Conflict, HeadraceError, NotFound
from headrace_common.core.image import Node, NodeKey
from headrace_common.runtime.clock import Clock

T = TypeVar("T")

_AT_ONE_TIME: Final = 16
_NAMED: Final = 20
_EXPLAINED_MAX: Final = 100
"""Refusals with the command that would allow them: to find one all grants of its caller are read."""
_MINUTE_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What became of asking one node."""

    node: NodeKey
    since_ms: int | None = None
    error: str = ""
    """Empty: it has answered."""


@dataclass(frozen=True, slots=True)
class Gathered:
    """Over all nodes."""

    mode: Mode
    report: Report
    nodes: tuple[NodeReport, ...]
    unused: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """A refusal, as nodes remember it, and which were asked."""

    refusals: tuple[tuple[NodeKey, Remembered], ...]
    nodes: tuple[NodeReport, ...]


class Observations:
    """Any number of calls at one time on one event loop."""

    def __init__(self, cluster: Cluster, nodes: Nodes, views: Views, clock: Clock) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._views = views
        self._clock = clock

    async def gather(self, rights: Rights, within_ms: int) -> Gathered:
        """What all nodes have seen that long, as far as ``rights`` show it; the latest first."""
        here = rights.control.report()
        asked = [(self._nodes.key, here, ""), *await self._each(self._nodes.observed)]
        whole = together(report for _, report, _ in asked if report is not None)
        nodes = tuple(
            NodeReport(key, None if report is None else report.since_ms, error) for key, report, error in asked
        )
        seen = whole.within(self._clock.now_ms() - within_ms)

        def shows(principal: str) -> bool:
            return rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, principal)

        view = self._views()
        rules = (
            Rule(who, grant)
            for who in sorted(view.access.rules, key=str)
            if shows(str(who))
            for grant in sorted(view.access.rules[who], key=str)
        )
        return Gathered(view.mode, seen.of(shows), nodes, tuple(unused(rules, whole)))

    def here(self, rights: Rights) -> Report:
        """What this process has seen itself, as far as ``rights`` show it."""
        return rights.control.report().of(
            lambda principal: rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, principal)
        )

    async def losses(self, rights: Rights, changes: Sequence[Change]) -> tuple[list[Loss], tuple[NodeReport, ...]]:
        """
        What was done in the last day and would be refused after ``changes``, as far as ``rights`` show it.

        Raises:
            HeadraceError: they cannot be made.
        """
        before = self._views().access
        after = apply(before, changes)
        gathered = await self.gather(rights, DAY_MS)
        return list(find_losses(before, after, gathered.report)), gathered.nodes

    def refused_here(self, rights: Rights, id: str) -> Remembered | None:
        """What this process remembers of a refusal, as far as ``rights`` show it."""
        found = rights.control.remembered(id)
        shown = found is not None and rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, found.principal)
        return found if shown else None

    async def why_refused(self, rights: Rights, id: str) -> Why:
        """
        What all nodes remember of a refusal, as far as ``rights`` show it.

        Raises:
            Rejected: there is no such id.
            NotFound: nobody remembers it whom ``rights`` show.
        """
        id = check_id(id)

        def told(found: Remembered | None) -> bool:
            return found is not None and rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, found.principal)

        async def look(node: Node) -> Remembered | None:
            return await self._nodes.refused(node, id)

        asked = [(self._nodes.key, self.refused_here(rights, id), ""), *await self._each(look)]
        refusals = tuple((key, found) for key, found, _ in asked if found is not None and told(found))
        nodes = tuple(NodeReport(key, error=error) for key, _, error in asked)
        if not refusals:
            silent = [str(node.node) for node in nodes if node.error]
            but = f"; {', '.join(silent[:_NAMED])} cannot be asked" if silent else ""
            raise NotFound(
                f"no node remembers refusal {id} of somebody whom you may know of{but}. Each remembers the latest "
                f"{REFUSALS_MAX} since it was started; headrace audit search has older ones"
            )
        return Why(refusals, nodes)

    async def _each(self, ask: Callable[[Node], Awaitable[T]]) -> list[tuple[NodeKey, T | None, str]]:
        """What each other node answers, or why it does not."""
        others = [node for key, node in sorted(self._cluster.image.nodes.items(), key=str) if key != self._nodes.key]
        turns = asyncio.Semaphore(_AT_ONE_TIME)

        async def one(node: Node) -> tuple[NodeKey, T | None, str]:
            async with turns:
                try:
                    return node.key, await ask(node), ""
                except HeadraceError as error:
                    return node.key, None, str(error)

        return await asyncio.gather(*map(one, others))

    def remedies(self, report: Report) -> dict[Refusal, str]:
        """The commands that would allow the first refusals."""
        found = {}
        for one in list(report.refusals)[:_EXPLAINED_MAX]:
            line = self._line(one)
            if line is not None:
                found[one] = line
        return found

    def _line(self, one: Refusal) -> str | None:
        principal = parse_principal(one.principal)
        if principal == ANONYMOUS or principal.type is PrincipalType.NODE:
            return None
        caller = Caller(principal, host=host_of(one.host) if one.host else None)
        return explain(self._views().access, caller, one.operation, one.type, one.name).line

    async def check_closing(self, rights: Rights, within_ms: int, accepted: Collection[str]) -> None:
        """
        Look whether somebody that was seen would be cut off by closing the cluster.

        Args:
            accepted: principals and addresses whose loss is taken.

        Raises:
            Conflict: somebody would be, or nobody knows.
        """
        if self._views().mode is Mode.CLOSED:
            return
        gathered = await self.gather(rights, within_ms)
        silent = [node for node in gathered.nodes if node.error]
        blind = [node for node in gathered.nodes if not node.error and node.since_ms is None]
        now_ms = self._clock.now_ms()
        young = [
            node
            for node in gathered.nodes
            if node.since_ms is not None and now_ms - node.since_ms < within_ms and not node.error
        ]
        lost = gathered.report.without(accepted)
        if silent:
            raise _no(f"{silent[0].node} cannot be asked who calls it ({silent[0].error})")
        if blind:
            raise _no(f"{blind[0].node} has not looked who calls; make the cluster permissive first, and wait")
        if lost.loses:
            raise _no(f"it would cut off {_names(lost)}; headrace access report has all of it")
        if young:
            youngest = max(young, key=lambda node: node.since_ms or 0)
            raise _no(
                f"{youngest.node} has looked for {_span(now_ms - (youngest.since_ms or 0))} who calls, not for "
                f"{_span(within_ms)}; "
                "wait, or ask for less with --within MINUTES if all programs have called meanwhile"
            )


def _span(ms: float) -> str:
    """A time in the unit that a person would say."""
    for unit_ms, word in ((_MINUTE_MS, "minute"), (1_000, "second")):
        if ms >= 2 * unit_ms or word == "second":
            number = int(ms // unit_ms)
            return f"{number} {word}{'' if number == 1 else 's'}"
    raise AssertionError("seconds are always said")


def _no(why: str) -> Conflict:
    return Conflict(
        f"the cluster is not closed: {why}. --accept-loss-of NAME closes it all the same, for a principal or an "
        "address; --accept-loss for all"
    )


def _how(one: Stranger) -> str:
    """What is wrong with how somebody comes."""
    if one.plain:
        return "in plain text"
    return "with a credential that is not valid" if one.wrong else "without a credential"


def _names(lost: Report) -> str:
    """Whom, the latest first."""
    strangers = [f"a caller {_how(one)} from {one.host or 'somewhere'}" for one in lost.strangers]
    refused = dict.fromkeys(one.principal for one in lost.refusals if one.principal != str(ANONYMOUS))
    names = [*strangers, *refused] or ["others that nodes had no room for"]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more

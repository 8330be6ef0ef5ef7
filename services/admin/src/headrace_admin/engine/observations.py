"""
Who comes without a credential, what a closed cluster would refuse, and which rights are used: asked of every node.

A cluster is not closed while somebody would be cut off by that: who was seen lately is named, and the caller says whose
loss it takes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from headrace_admin.engine.accesses import Views
from headrace_admin.ports import Cluster, Nodes
from headrace_common.core.access.changes import Rule
from headrace_common.core.access.control import Rights
from headrace_common.core.access.explain import explain
from headrace_common.core.access.grants import host_of
from headrace_common.core.access.observed import Refusal, Report, Stranger, together, unused
from headrace_common.core.access.principal import ANONYMOUS, PrincipalType, parse_principal
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import Conflict, HeadraceError
from headrace_common.core.image import Node, NodeKey
from headrace_common.runtime.clock import Clock

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
        others = [node for key, node in sorted(self._cluster.image.nodes.items(), key=str) if key != self._nodes.key]
        turns = asyncio.Semaphore(_AT_ONE_TIME)

        async def ask(node: Node) -> tuple[NodeReport, Report | None]:
            async with turns:
                try:
                    report = await self._nodes.observed(node)
                except HeadraceError as error:
                    return NodeReport(node.key, error=str(error)), None
            return NodeReport(node.key, report.since_ms), report

        asked = [(NodeReport(self._nodes.key, here.since_ms), here), *await asyncio.gather(*map(ask, others))]
        whole = together(report for _, report in asked if report is not None)
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
        return Gathered(view.mode, seen.of(shows), tuple(node for node, _ in asked), tuple(unused(rules, whole)))

    def here(self, rights: Rights) -> Report:
        """What this process has seen itself, as far as ``rights`` show it."""
        return rights.control.report().of(
            lambda principal: rights.shows(Operation.DESCRIBE, ResourceType.PRINCIPAL, principal)
        )

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
            minutes = (now_ms - (youngest.since_ms or 0)) // _MINUTE_MS
            raise _no(
                f"{youngest.node} has looked for {minutes:.0f} minutes who calls, not for {within_ms // _MINUTE_MS}; "
                "wait, or ask for less with --within MINUTES if all programs have called meanwhile"
            )


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

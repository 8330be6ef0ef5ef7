"""
Finds what cannot have happened in any order of time: cycles in the graph of what came before what.

The nodes are the moments of a history: a value is appended, a poll returns, a transaction is decided, an answer is
heard. The edges are facts:

- appends of a key come in the order of offsets (write-write);
- a poll inside a transaction comes before what the transaction does next, and all of it before its decision (process);
- what returned before something else was called comes before it (realtime);
- a value is decided before it is visible, what is visible of a key is its beginning up to some offset, and a poll
  returns what is visible (write-read); readers of what is not committed get it when it is appended.

A cycle of these has no explanation. One through a poll is ``G1c``, one without ``G0-realtime``. Whole transactions are
nodes of a second graph, whose cycles through writes alone are ``G0``: they show that transactions do not isolate
their writes from each other, which nobody promised.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from headrace_verify.checker import Key, Outcome, Value
from headrace_verify.checker_history import Act, F, Polled, Sent

SHOWN_MAX = 8


class Graph:
    """Nodes by number, each of one act; edges as they come."""

    def __init__(self) -> None:
        self.owner: array[int] = array("q")
        """Place of the node's act; -1: of none."""
        self.polls: set[int] = set()
        """Nodes that are polls."""
        self._from: array[int] = array("q")
        self._to: array[int] = array("q")

    def node(self, owner: int = -1) -> int:
        self.owner.append(owner)
        return len(self.owner) - 1

    def edge(self, before: int, after: int) -> None:
        """``before`` happened before ``after``."""
        self._from.append(before)
        self._to.append(after)

    def cycles(self) -> list[list[int]]:
        """Its strongly connected components of more than one node, or of one that comes before itself."""
        if not self._from:
            return []
        size = len(self.owner)
        sources, targets = np.frombuffer(self._from, dtype=np.int64), np.frombuffer(self._to, dtype=np.int64)
        left = _find_unsorted(size, sources, targets)
        if not left.any():
            return []
        inside = left[sources] & left[targets]
        starts, ends = _successors(size, sources[inside], targets[inside])
        return list(components(np.flatnonzero(left).tolist(), starts, ends))


def _successors(
    size: int, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]
) -> tuple[list[int], list[int]]:
    """Where each node's successors begin, and all of them."""
    starts = np.zeros(size + 1, dtype=np.int64)
    np.cumsum(np.bincount(sources, minlength=size), out=starts[1:])
    return starts.tolist(), targets[np.argsort(sources, kind="stable")].tolist()


def _find_unsorted(size: int, sources: npt.NDArray[np.int64], targets: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    """Which nodes no order of time reaches (Kahn 1962): those on cycles and behind them. Most histories have none."""
    starts, after = _successors(size, sources, targets)
    waits = np.bincount(targets, minlength=size).tolist()
    ready = [node for node in range(size) if not waits[node]]
    while ready:
        node = ready.pop()
        for target in after[starts[node] : starts[node + 1]]:
            waits[target] -= 1
            if not waits[target]:
                ready.append(target)
    return np.asarray(waits, dtype=np.int64) > 0


def components(nodes: Iterable[int], starts: Sequence[int], after: Sequence[int]) -> Iterable[list[int]]:
    """Strongly connected components that have a cycle (Tarjan 1972, without recursion)."""
    low: dict[int, int] = {}
    place: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()

    def enter(node: int) -> tuple[int, Iterator[int]]:
        place[node] = low[node] = len(place)
        path.append(node)
        on_path.add(node)
        return node, iter(after[starts[node] : starts[node + 1]])

    for root in nodes:
        work = [] if root in place else [enter(root)]
        while work:
            node, targets = work[-1]
            for target in targets:
                if target not in place:
                    work.append(enter(target))
                    break
                if target in on_path:
                    low[node] = min(low[node], place[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == place[node]:
                    found = _pop_until(path, on_path, node)
                    if len(found) > 1 or node in after[starts[node] : starts[node + 1]]:
                        yield found


def _pop_until(path: list[int], on_path: set[int], until: int) -> list[int]:
    found = []
    while True:
        found.append(path.pop())
        on_path.discard(found[-1])
        if found[-1] == until:
            return found


# --- the two graphs of a history ------------------------------------------------------------------------------


class Moments:
    """The graph of moments of a history; ``offsets`` are where values are as far as anybody knows."""

    def __init__(
        self, acts: Sequence[Act], offsets: Mapping[Key, Mapping[Value, int]], read: Mapping[Key, set[Value]]
    ) -> None:
        self.graph = Graph()
        self._acts = acts
        self._offsets = offsets
        self._read = read
        self._appends: dict[Key, list[tuple[int, int]]] = {}
        """Key → offset and node."""
        self._decided: dict[Key, list[tuple[int, int]]] = {}
        """Key → offset and node of the decision that made it visible."""
        self._reads: dict[Key, list[tuple[int, int]]] = {}
        """Key → highest offset and node of each poll."""

    def build(self, *, read_committed: bool) -> Graph:
        """All nodes and edges."""
        self._build_acts()
        for key, appends in self._appends.items():
            appends.sort()
            for (_, before), (_, after) in pairwise(appends):
                self.graph.edge(before, after)
            self._link_reads(key, self._decided.get(key, []) if read_committed else appends)
        return self.graph

    def _build_acts(self) -> None:
        """Acts in the order of calls, and the chain of returns between them."""
        graph, acts = self.graph, self._acts
        returns = sorted((act.returned, number) for number, act in enumerate(acts) if act.returned is not None)
        heard, at, ends = -1, 0, [-1] * len(acts)
        for number, act in enumerate(acts):
            while at < len(returns) and returns[at][0] < act.called:
                node = graph.node()
                if heard >= 0:
                    graph.edge(heard, node)
                if ends[returns[at][1]] >= 0:
                    graph.edge(ends[returns[at][1]], node)
                heard, at = node, at + 1
            ends[number] = self._build_act(number, act, heard)

    def _build_act(self, number: int, act: Act, heard: int) -> int:
        """The nodes of one act; the last one is returned, -1 if it has none."""
        graph, before = self.graph, heard
        if not act.micros:
            return -1
        if len(act.micros) == 1:
            return self._build_micro(number, act, act.micros[0], heard, -1)
        decision = graph.node(number)
        visible = decision if act.f is F.TXN else -1  # of a batch each record is there when it is written
        for micro in act.micros:
            node = self._build_micro(number, act, micro, before, visible)
            graph.edge(node, decision)
            if isinstance(micro, Polled):
                before = node
        return decision

    def _build_micro(self, number: int, act: Act, micro: Sent | Polled, before: int, decision: int) -> int:
        graph = self.graph
        node = graph.node(number)
        if before >= 0:
            graph.edge(before, node)
        if isinstance(micro, Polled):
            graph.polls.add(node)
            self._note_poll(act, micro, node)
            return node
        key, value = micro.key, micro.value
        offset = self._offsets.get(key, {}).get(value)
        if offset is not None and act.outcome is not Outcome.FAIL:
            self._appends.setdefault(key, []).append((offset, node))
            if act.acknowledged(micro) or value in self._read.get(key, ()):
                self._decided.setdefault(key, []).append((offset, node if decision < 0 else decision))
        return node

    def _note_poll(self, act: Act, micro: Polled, node: int) -> None:
        own = {(m.key, m.value) for m in act.micros if isinstance(m, Sent)}
        for key, points in micro.points.items():
            others = [o for o, value in points if (key, value) not in own] if own else [o for o, _ in points]
            highest = max(others, default=-1)
            if highest >= 0:
                self._reads.setdefault(key, []).append((highest, node))

    def _link_reads(self, key: Key, sources: list[tuple[int, int]]) -> None:
        """What is visible of a key is a beginning of it: one node for each end that a poll has seen."""
        graph, sources, at, seen, last = self.graph, sorted(sources), 0, -1, -1
        for offset, poll in sorted(self._reads.get(key, ())):
            if offset != last:
                node = graph.node()
                if seen >= 0:
                    graph.edge(seen, node)
                while at < len(sources) and sources[at][0] <= offset:
                    graph.edge(sources[at][1], node)
                    at += 1
                seen, last = node, offset
            graph.edge(seen, poll)


def impossible(graph: Graph, acts: Sequence[Act]) -> Iterable[tuple[str, str]]:
    """Name and text of each cycle of moments."""
    for cycle in graph.cycles():
        name = "G1c" if any(node in graph.polls for node in cycle) else "G0-realtime"
        yield name, _describe(cycle, graph, acts)


def find_interleaved(acts: Sequence[Act], offsets: Mapping[Key, Mapping[Value, int]]) -> Iterable[str]:
    """Cycles of whole transactions through their writes."""
    graph = Graph()
    places: dict[Key, list[tuple[int, int]]] = {}
    for number, act in enumerate(acts):
        graph.node(number)
        for micro in act.micros if act.outcome is not Outcome.FAIL else ():
            if isinstance(micro, Sent):
                offset = offsets.get(micro.key, {}).get(micro.value)
                if offset is not None:
                    places.setdefault(micro.key, []).append((offset, number))
    for found in places.values():
        found.sort()
        for (_, before), (_, after) in pairwise(found):
            if before != after:
                graph.edge(before, after)
    for cycle in graph.cycles():
        yield _describe(cycle, graph, acts)


def _describe(cycle: Sequence[int], graph: Graph, acts: Sequence[Act]) -> str:
    owners = sorted({acts[graph.owner[node]].number for node in cycle if graph.owner[node] >= 0})
    more = f" and {len(owners) - SHOWN_MAX} more" if len(owners) > SHOWN_MAX else ""
    return f"operations {', '.join(map(str, owners[:SHOWN_MAX]))}{more} each come before the other"

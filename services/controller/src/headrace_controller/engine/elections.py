"""
Elections that need more than the metadata, for one term of the active controller.

Three kinds: balanced recovery, when all last known replicas of a partition are back and their logs are compared;
elections by command; and going back to preferred leaders, by the clock. All writes go through ``Settling``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from headrace_common.core.configs import BROKER_SETTINGS
from headrace_common.core.errors import HeadraceError, MetadataUnavailable, Rejected
from headrace_common.core.ids import NodeId, PartitionId
from headrace_common.core.image import Node, NodeKey, Partition, Role
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.logs import logger
from headrace_controller.core import election, leadership
from headrace_controller.core.election import LogEnds
from headrace_controller.core.leadership import Election
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.settling import Settling
from headrace_controller.engine.waiting import event_within
from headrace_controller.ports import LogEndsSource, StoreOutcomeUnknown

ASKED_AT_ONCE: Final = 10_000
"""Logs in one question to a broker."""

MOVED_AT_ONCE: Final = 20
"""Leaders that go back to where they belong in one step; each costs its clients a moment."""

_IDLE_MS: Final = 60_000
_NAMED_IN_LOG: Final = 20
_TICK_MS: Final = 1_000

log = logger(__name__)

Outcomes = list[tuple[PartitionId, Partition | HeadraceError]]
"""What became of each partition."""


@dataclass(frozen=True, slots=True)
class _Answers:
    """What brokers said of their logs, and which processes said it."""

    epochs: Mapping[NodeId, int]
    """Of the brokers that answered."""
    ends: Mapping[PartitionId, LogEnds]

    def still_hold(self, members: Sequence[NodeId], epochs: Mapping[NodeId, int]) -> bool:
        """Whether those of ``members`` that answered are the processes that did; a log that nobody leads stays."""
        return all(self.epochs.get(m) in {None, epochs.get(m)} for m in members)


class Elections:
    """The loops and commands of one term."""

    def __init__(self, follower: Follower, settling: Settling, source: LogEndsSource, clock: Clock) -> None:
        self._follower = follower
        self._settling = settling
        self._source = source
        self._clock = clock
        self.balanced = 0
        """Partitions that came back by comparing the logs of all last known replicas."""
        self._told: frozenset[PartitionId] = frozenset()
        self._mute: set[NodeKey] = set()
        self.given_back = 0
        """Leaderships that went back to preferred leaders."""

    async def recover(self) -> None:
        """
        Compare logs whenever all last known replicas of a leaderless partition are back, until cancelled.

        Raises:
            NotController: the term is over.
        """
        tries = 0
        while True:
            await event_within(self._settling.passed, self._clock, backoff_ms(tries) if tries else _IDLE_MS)
            self._settling.passed.clear()
            try:
                tries = tries + 1 if await self._recover() else 0
            except (MetadataUnavailable, StoreOutcomeUnknown) as error:
                log.warning("partitions are recovered later", extra={"reason": str(error)})
                tries += 1

    async def _recover(self) -> bool:
        """Elect where logs can be compared; whether some partition still waits for an answer or an operator."""
        due = self._list_waiting()
        if not due:
            return False
        answers = await self._ask(due)

        def step(partition: Partition) -> Partition:
            brokers = self._settling.brokers()
            members = election.to_ask(partition, brokers)
            if not members or not answers.still_hold(members, brokers.epochs):
                return partition
            ends = answers.ends.get(partition.id, {})
            return election.settle(partition, brokers, self._settling.rules_of(partition), ends)

        async with self._settling.turn:
            self.balanced += await self._settling.bring(list(due), step)
        left = self._list_waiting()
        now = self._follower.mirror.image.partitions
        gone = (p for p in due if p not in left and p.id in now)
        back = [p.id for p in gone if not now[p.id].offline and now[p.id].recovering <= p.recovering]
        if back:
            some = {str(i): {"leader": now[i].leader, "log_ends": dict(answers.ends[i])} for i in back[:_NAMED_IN_LOG]}
            extra = {"recovered": len(back), "partitions": some}
            log.warning("balanced recovery: the longest of all last known logs leads", extra=extra)
        stuck = frozenset(p.id for p in left)
        told, self._told = self._told, stuck
        if stuck - told:
            waiting = [str(p.id) for p in left][:_NAMED_IN_LOG]
            log.error("partitions wait for a whole log", extra={"waiting": len(left), "partitions": waiting})
        return bool(left)

    def _list_waiting(self) -> dict[Partition, tuple[NodeId, ...]]:
        brokers = self._settling.brokers()
        leaderless = (p for p in self._follower.mirror.image.partitions.values() if p.offline)
        return {p: members for p in leaderless if (members := election.to_ask(p, brokers))}

    async def elect(self, kind: Election, ids: Sequence[PartitionId]) -> Outcomes:
        """
        What became of each partition that was named, or with none named, of those that were changed.

        Raises:
            Rejected: an unclean election without naming partitions.
            HeadraceError: as ``Settling.bring``; some of it may be done, repeat the whole.
        """
        if kind is Election.PREFERRED:
            return await self._prefer(ids or self._preferable(0))
        if not ids:
            raise Rejected(f"{kind.name} gives records up; name the partitions")
        results = await self._give_up(kind, ids)
        led = [str(i) for i, r in results if isinstance(r, Partition)]
        log.warning(
            "an operator accepted that committed records may be lost",
            extra={"election": kind.name, "asked": len(ids), "elected": len(led), "partitions": led[:_NAMED_IN_LOG]},
        )
        return results

    async def _prefer(self, ids: Sequence[PartitionId]) -> Outcomes:
        def step(partition: Partition) -> Partition:
            return leadership.elect_preferred(partition, self._settling.brokers(), self._settling.rules_of(partition))

        results: list[Partition | HeadraceError] = []
        for start in range(0, len(ids), MOVED_AT_ONCE):
            results += await self._settling.attempt(ids[start : start + MOVED_AT_ONCE], step)
        self.given_back += sum(isinstance(r, Partition) for r in results)
        return list(zip(ids, results, strict=True))

    async def _give_up(self, kind: Election, ids: Sequence[PartitionId]) -> Outcomes:
        image, brokers = self._follower.mirror.image, self._settling.brokers()
        due = {}
        for partition in (image.partitions[i] for i in ids if i in image.partitions):
            if partition.offline:
                due[partition] = tuple(r for r in partition.replicas if brokers.may_lead(r))
        answers = await self._ask(due)

        def step(partition: Partition) -> Partition:
            now, rules = self._settling.brokers(), self._settling.rules_of(partition)
            living = leadership.candidates(partition, kind, now)
            if not answers.still_hold(living, now.epochs):
                raise MetadataUnavailable(f"a broker of {partition.id} was restarted just now; try again")
            return leadership.elect_longest(partition, kind, now, rules, answers.ends.get(partition.id, {}))

        return list(zip(ids, await self._settling.attempt(ids, step), strict=True))

    async def _ask(self, due: Mapping[Partition, tuple[NodeId, ...]]) -> _Answers:
        """Ask each broker once for all its logs that matter, all brokers side by side."""
        wanted: dict[NodeId, list[Partition]] = {}
        for partition, members in due.items():
            for member in members:
                wanted.setdefault(member, []).append(partition)
        nodes = self._follower.mirror.image.nodes
        asked = [(node, held) for m, held in wanted.items() if (node := nodes.get(NodeKey(Role.BROKER, m))) is not None]
        answers = await asyncio.gather(*(self._ask_one(node, held) for node, held in asked))
        ends: dict[PartitionId, dict[NodeId, election.LogEnd | None]] = {}
        for (node, held), answer in zip(asked, answers, strict=True):
            if answer is None:
                continue
            for partition in held:
                ends.setdefault(partition.id, {})[node.key.id] = answer.get(partition.id)
        answered = [node for (node, _), answer in zip(asked, answers, strict=True) if answer is not None]
        epochs = {node.key.id: node.epoch for node in answered}
        return _Answers(epochs, ends)

    async def _ask_one(self, node: Node, held: Sequence[Partition]) -> Mapping[PartitionId, election.LogEnd] | None:
        """None: it does not answer now."""
        found: dict[PartitionId, election.LogEnd] = {}
        try:
            for start in range(0, len(held), ASKED_AT_ONCE):
                found.update(await self._source.log_ends(node, [p.id for p in held[start : start + ASKED_AT_ONCE]]))
        except HeadraceError as error:
            if node.key not in self._mute:
                extra = {"peer": str(node.key), "reason": str(error)}
                log.warning("a broker does not say where its logs end", extra=extra)
            self._mute.add(node.key)
            return None
        self._mute.discard(node.key)
        return found

    async def keep_preferred(self) -> None:
        """
        Give leaderships back every ``leader.imbalance.check.interval.seconds``, until cancelled.

        Raises:
            NotController: the term is over.
        """
        last = self._clock.monotonic_ms()
        while True:
            await self._clock.sleep_ms(_TICK_MS)
            now = self._clock.monotonic_ms()
            if now - last < 1_000 * int(self._setting("leader.imbalance.check.interval.seconds")):
                continue
            last = now
            if self._setting("auto.leader.rebalance.enable") != "true":
                continue
            try:
                due = self._preferable(int(self._setting("leader.imbalance.per.broker.percentage")))
                if due:
                    await self._prefer(due)
                    log.info("leaders went back to their preferred brokers", extra={"partitions": len(due)})
            except (MetadataUnavailable, StoreOutcomeUnknown) as error:
                log.warning("leaders go back later", extra={"reason": str(error)})

    def _preferable(self, percentage_max: int) -> list[PartitionId]:
        partitions = self._follower.mirror.image.partitions.values()
        return [p.id for p in leadership.find_imbalanced(partitions, self._settling.brokers(), percentage_max)]

    def _setting(self, name: str) -> str:
        return self._follower.mirror.image.cluster_configs.get(name, BROKER_SETTINGS[name].default)

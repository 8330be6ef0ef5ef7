"""
Coordinators with shards of both kinds: the real ``TransactionShard``, ``Shard`` and ``Outbox``.

Played here: ``engine.coordinator``, ``engine.transaction_host``, what ``engine.shard_host`` does for positions, and the
marker driver, which tells every partition and repeats until it has heard of each.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tests.simulation.transactions.callers import Caller, Make
from tests.simulation.transactions.processes import Promise, Script
from tests.simulation.transactions.shard_life import APPEND_TIMEOUT_MS, Node, ShardLife

from headrace_common.core.errors import (
    CoordinatorNotAvailable,
    HeadraceError,
    InvalidProducerEpoch,
    NotCoordinator,
)
from headrace_common.core.ids import NodeId, PartitionId
from headrace_coordinator.core import effects as of_groups
from headrace_coordinator.core import events as groups
from headrace_coordinator.core.effects import EnrolShard, MarkerOutcomes
from headrace_coordinator.core.shard import Shard
from headrace_coordinator.core.transactions import effects as of_transactions
from headrace_coordinator.core.transactions.effects import Completed, TookProducerId, WriteMarkers
from headrace_coordinator.core.transactions.events import EnrolAsked, GaveUp, Loaded, MarkersWritten, Woken
from headrace_coordinator.core.transactions.shard import TransactionShard
from headrace_coordinator.engine.host import Phase
from headrace_coordinator.engine.outbox import Outbox

if TYPE_CHECKING:
    from tests.simulation.transactions.shard_controller import Image
    from tests.simulation.transactions.world import World

ENROL_MS = 4_000.0


@dataclass(frozen=True)
class Told:
    """An effect on its way out, and the event that it came of."""

    effect: Any
    event: Any
    number: int


class ShownLife(ShardLife):
    """What both kinds have in common here: nothing is a stream."""

    world: World
    owner: TxnNode

    def __init__(self, number: int, epoch: int, owner: TxnNode) -> None:
        self._about: dict[int, Told] = {}
        self._events: dict[Promise, Any] = {}
        """Who waits for an answer asked this; it may come of another event."""
        super().__init__(number, epoch, owner)

    def _new_outbox(self) -> Outbox[Any]:
        return Outbox(self._group_record, self._show)

    def _group_record(self, group_id: str) -> of_groups.Row:
        raise AssertionError(f"{group_id} has no members here")

    def _needs_proof(self, event: Any, effects: list[Any]) -> bool:
        del event
        return any(isinstance(e, of_groups.Answer | of_transactions.Answer) for e in effects)

    def _note(self, event: Any, effects: list[Any]) -> int:
        del event, effects
        return self.world.invariants.next_number()

    def ask(self, event: Any, answer: Promise) -> None:
        """As a host."""
        self._events[answer] = event
        answer.when_done(lambda: self._events.pop(answer, None))
        super().ask(event, answer)

    def _about_to_show(self, effect: Any, event: Any, number: int) -> None:
        asked = self._events.get(getattr(effect, "ref", None), event)
        self._about[id(effect)] = Told(effect, asked, number)

    def _let_go(self, error: HeadraceError) -> None:
        """``ask`` tells everybody."""

    def _show(self, effect: Any) -> None:
        told = self._about.pop(id(effect))
        self.world.invariants.shown(self, told)
        self._carry_out(effect)

    def _carry_out(self, effect: Any) -> None:
        ref = effect.ref
        assert isinstance(ref, Promise), "a reference is a promise"
        if isinstance(effect.result, HeadraceError):
            ref.settle(error=effect.result)
        else:
            ref.settle(effect.result)


class TransactionLife(ShownLife):
    """One shard of transactions in one epoch."""

    def _new_core(self) -> TransactionShard:
        return TransactionShard(self.number, self.world.settings_of_transactions)

    def _first_events(self) -> Iterable[Any]:
        yield Loaded(self.owner.moment())

    def _woken_event(self) -> Any:
        return Woken(self.owner.moment())

    def ask(self, event: Any, answer: Promise) -> None:
        """As a host: who waits too long is told so, and what still waits for an end is taken back."""
        super().ask(event, answer)
        transactional_id = getattr(event, "transactional_id", None)
        if transactional_id is not None:
            self.owner.later(APPEND_TIMEOUT_MS, self._give_up, self.core, transactional_id, answer)

    def _give_up(self, core: object, transactional_id: str, answer: Promise) -> None:
        if core is self.core and self.phase is Phase.SERVING:
            self.handle(GaveUp(transactional_id, answer))

    def _take(self, effects: Iterable[Any], *, proof: bool) -> None:
        self.outbox.take([e for e in effects if not isinstance(e, TookProducerId)], proof=proof)

    def _carry_out(self, effect: Any) -> None:
        if isinstance(effect, WriteMarkers):
            for partition in effect.partitions:
                self.owner.run(self._mark(self.core, effect, partition))
        elif isinstance(effect, Completed):
            self.world.counts[f"transactions {'committed' if effect.commit else 'aborted'}"] += 1
            self.world.counts[f"ended by {effect.cause.name.lower()}"] += 1
        else:
            super()._carry_out(effect)

    def _mark(self, core: object, effect: WriteMarkers, partition: PartitionId) -> Script:
        """The marker driver, for one partition."""
        yield self.world.lag()
        pause = 10.0
        while core is self.core and self.phase is Phase.SERVING:
            try:
                yield from self._marked(effect, partition)
                break
            except InvalidProducerEpoch:
                self.world.counts["markers of the past"] += 1
                break
            except HeadraceError:
                yield pause * (0.5 + self.world.rng.random())
                pause = min(pause * 2, 500.0)
        if core is self.core and self.phase is Phase.SERVING:
            at = self.owner.moment()
            done = MarkersWritten(effect.transactional_id, at, effect.producer_id, effect.epoch, (partition,))
            self.handle(done)

    def _marked(self, effect: WriteMarkers, partition: PartitionId) -> Script:
        marker = effect.producer_id, effect.epoch, effect.commit
        if partition.topic_id != self.world.offsets_topic:
            yield from self.owner.to_leader(partition, "mark", *marker)
            return
        one = groups.Marker(*marker)
        number = partition.partition
        outcomes = yield from self.owner.to_shard(number, lambda ref, at: groups.MarkersAsked(ref, at, (one,)))
        assert isinstance(outcomes, MarkerOutcomes), "markers are answered by their outcomes"
        if outcomes.outcomes[0] is not None:
            raise outcomes.outcomes[0]


class OffsetsLife(ShownLife):
    """One shard of groups in one epoch, of which only positions are asked."""

    def _new_core(self) -> Shard:
        return Shard(self.number, self.world.settings_of_groups)

    def _first_events(self) -> Iterable[Any]:
        yield groups.TopicsChanged(self.owner.moment(), self.world.controller.image.topics, {})
        yield groups.Loaded(self.owner.moment())

    def _woken_event(self) -> Any:
        return groups.Woken(self.owner.moment())

    def _take(self, effects: Iterable[Any], *, proof: bool) -> None:
        told = list(effects)
        self.outbox.take([e for e in told if not isinstance(e, EnrolShard)], proof=proof)
        for effect in told:
            if isinstance(effect, EnrolShard):
                self.world.counts["enrolments of positions"] += 1
                self._about.pop(id(effect))
                self.owner.run(self._enrol(self.core, effect))

    def _enrol(self, core: object, effect: EnrolShard) -> Script:
        who, here = effect.transactional_id, PartitionId(self.world.offsets_topic, self.number)
        transaction = effect.producer_id, effect.producer_epoch

        def asked() -> Script:
            return (
                yield from self.owner.to_shard(
                    self.world.shard_of(who), lambda ref, at: EnrolAsked(who, ref, at, *transaction, (here,))
                )
            )

        error: HeadraceError | None = None
        try:
            yield from self.owner.again(asked, self.owner.mono + ENROL_MS)
        except HeadraceError as refused:
            error = CoordinatorNotAvailable("the transaction's coordinator did not answer")
            error = error if refused.retriable else refused
        yield self.world.lag()
        if core is self.core and self.phase is Phase.SERVING:
            self.handle(groups.ShardEnrolled(effect.number, self.owner.moment(), error))


class TxnNode(Node, Caller):
    """One coordinator process."""

    world: World

    def __init__(self, number: int, world: World) -> None:
        super().__init__(number, world)
        self.node_id = NodeId(number)
        self.hosts: dict[int, ShownLife] = {}
        self.revision = -1

    def start(self) -> None:
        """A new process."""
        self.up, self.paused = True, False
        self.hosts, self.revision = {}, -1
        self.tenure_until = -math.inf
        self.zero = self.world.rng.random() * 1e6
        self.world.say("coordinator", self.id, "starts")
        self._beat()

    def die(self) -> None:
        """Killed."""
        super().die()
        self.hosts = {}

    def _beat(self) -> None:
        sent, session = self.mono, self.world.profile.controller_session_ms
        answer = self.call(self.world.controller, self.world.controller.heartbeat, self, timeout_ms=2_000.0)

        def answered() -> None:
            if answer.error is None:
                self.tenure_until = sent + session if answer.value else -math.inf

        answer.when_done(answered)
        self.later(session / 6, self._beat)

    def apply(self, image: Image) -> None:
        """An image has come; older ones are nothing."""
        if image.revision <= self.revision:
            return
        self.revision = image.revision
        given = {n: s.epoch for n, s in image.shards.items() if s.owner == self.node_id}
        for number in [n for n, host in self.hosts.items() if given.get(n) != host.epoch]:
            self.hosts.pop(number).stop()
        for number, epoch in given.items():
            if number not in self.hosts:
                kind = TransactionLife if number < self.world.profile.transaction_shards else OffsetsLife
                self.hosts[number] = kind(number, epoch, self)

    def ask(self, answer: Promise, number: int, make: Make) -> None:
        """Any call; ``make`` makes the event when it arrives."""
        host = self.hosts.get(number)
        try:
            if host is None:
                raise NotCoordinator(f"shard {number} is not here")
            host.ask(make(answer, self.moment()), answer)
        except HeadraceError as error:
            answer.settle(error=error)

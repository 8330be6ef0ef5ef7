"""
The controller's engine: one method per RPC, and the loops behind them.

Reads are answered from the mirrored image by every controller. Writes go to the present term; a controller without
one says who is active.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from headrace_common.core.access.api_keys import ApiKey, KeyId
from headrace_common.core.access.changes import Change
from headrace_common.core.access.control import EVERYTHING, Rights
from headrace_common.core.access.resources import Operation, ResourceType
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.scram import Verifier
from headrace_common.core.errors import HeadraceError, MetadataUnavailable, NotController, Rejected
from headrace_common.core.ids import NO_NODE, Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import (
    EMPTY_IMAGE,
    ClusterImage,
    ImageDelta,
    NodeKey,
    Partition,
    Role,
    ShardKind,
    Topic,
)
from headrace_common.core.quotas.state import Change as QuotaChange
from headrace_common.runtime.tasks import TaskRunner
from headrace_controller.config import ControllerConfig
from headrace_controller.core import breakglass
from headrace_controller.core.health import Health, examine
from headrace_controller.core.isr_changes import Proposal
from headrace_controller.core.leadership import Election
from headrace_controller.core.records import Cluster
from headrace_controller.core.sessions import Heartbeat
from headrace_controller.core.settings import Alteration, Entry, Resource, describe
from headrace_controller.core.shards import Ownership, ownership
from headrace_controller.core.topics import Assignments, Wanted
from headrace_controller.engine.access import Altered
from headrace_controller.engine.candidate import Candidate
from headrace_controller.engine.deaths import Streams
from headrace_controller.engine.deposing import Deposing
from headrace_controller.engine.feed import Feed
from headrace_controller.engine.follower import Follower
from headrace_controller.engine.keys import NewKey, WantedKey
from headrace_controller.engine.logins import Step
from headrace_controller.engine.nodes import Joined, Joining, Vitals
from headrace_controller.engine.reassignments import Targets, under_way
from headrace_controller.engine.strays import RestoreStatus, describe_restore
from headrace_controller.engine.term import Outside, Term
from headrace_controller.engine.topics import Described


@dataclass(frozen=True, slots=True)
class Page:
    """Some topics, in order of their names."""

    topics: Sequence[Topic]
    more: bool
    total: int


@dataclass(frozen=True, slots=True)
class Status:
    """The cluster at a glance."""

    image: ClusterImage
    health: Health
    shards: Ownership
    store_reachable: bool
    behind: Mapping[NodeKey, float] = field(default_factory=dict)
    """Nodes that lack a change of access, and for how long, in ms; of the active controller."""


class ControllerEngine:
    """One controller, active or not."""

    def __init__(
        self,
        *,
        config: ControllerConfig,
        outside: Outside,
        endpoint: Callable[[], Endpoint],
        new_cluster: Callable[[], Cluster],
    ) -> None:
        store, clock = outside.store, outside.clock
        self._config = config
        self._outside = outside
        self._streams = Streams()
        self.feed = Feed(EMPTY_IMAGE, config.watcher_queue_max)
        self.follower = Follower(store, self.feed, clock, config.server.feature_level_max)
        self._examined: tuple[ClusterImage, Health] | None = None
        self.deposing = Deposing(
            store=store,
            follower=self.follower,
            probe=outside.probe,
            clock=clock,
            endpoint=endpoint,
            node_id=config.node_id,
            probe_delay_ms=config.liveness.probe_delay_ms,
        )
        self.candidate = Candidate(
            config=config,
            store=store,
            follower=self.follower,
            clock=clock,
            endpoint=endpoint,
            new_term=self._new_term,
            new_cluster=new_cluster,
        )

    def start(self, tasks: TaskRunner) -> None:
        """Start following and standing for election."""
        tasks.start(self.follower.run(), name="follower")
        tasks.start(self.candidate.run(), name="candidate")
        tasks.start(self.deposing.run(lambda: self.candidate.is_bidding), name="deposing")

    async def stop(self) -> None:
        """Give the office up and end all watches; calls under way are answered."""
        await self.candidate.resign()
        self.feed.close()

    @property
    def image(self) -> ClusterImage:
        """
        The image as it stands.

        Raises:
            MetadataUnavailable: this process has never reached the store.
        """
        if self.follower.mirror.half_restored:
            raise MetadataUnavailable("the metadata is being restored from a backup; try again when that is finished")
        if not self.follower.mirror.loaded:
            raise MetadataUnavailable("this controller has not reached the metadata store yet; try again")
        return self.follower.mirror.image

    def require_active(self) -> None:
        """
        Refuse a whole request that changes something, where this controller cannot change anything.

        Raises:
            NotController: somebody else is active, or nobody.
            MetadataUnavailable: the store is away.
        """
        self._active()

    async def register(self, joining: Joining) -> Joined:
        return await self._active().nodes.register(joining)

    async def heartbeat(self, heartbeat: Heartbeat) -> Vitals:
        term = self._active()
        if heartbeat.keys_wanted:
            term.issuers.want(heartbeat.keys_wanted)
        return await term.nodes.heartbeat(heartbeat)

    async def unregister(self, key: NodeKey) -> None:
        term = self._active_and_whole() if key.role is Role.BROKER else self._active()
        await term.nodes.unregister(key, term.topics.confirm)

    async def watch(self, node: NodeKey | None) -> AsyncIterator[ImageDelta]:
        """A snapshot, then every step; the end of a node's stream makes the active controller look at the node."""
        if node is not None:
            self._streams.opened(node)
        try:
            async for step in self.feed.follow():
                yield step
        finally:
            if node is not None and self._streams.closed(node):
                term = self.candidate.term
                if term is not None and not term.lost.is_set():
                    term.deaths.stream_broke(node)

    async def create_topic(
        self, wanted: Wanted, rights: Rights = EVERYTHING, *, validate_only: bool, timeout_ms: int
    ) -> Described:
        topics = self._active_and_whole().topics
        return await topics.create(wanted, validate_only=validate_only, timeout_ms=timeout_ms, rights=rights)

    async def delete_topic(self, name: str, rights: Rights = EVERYTHING) -> Topic:
        return await self._active_and_whole().topics.delete(name, rights)

    async def create_partitions(
        self, name: str, count: int, assignments: Assignments, rights: Rights = EVERYTHING, *, validate_only: bool
    ) -> Described:
        topics = self._active_and_whole().topics
        return await topics.grow(name, count, assignments, validate_only=validate_only, rights=rights)

    async def ensure_internal_topic(self, kind: ShardKind) -> int:
        return await self._active_and_whole().shards.ensure(kind)

    async def confirm_deletions(
        self, broker: NodeId, epoch: int, topic_ids: Sequence[TopicId], partitions: Sequence[PartitionId] = ()
    ) -> None:
        """See ``Topics.confirm``; the broker's epoch must be current."""
        term = self._active()
        term.nodes.check_epoch(NodeKey(Role.BROKER, broker), epoch)
        await term.topics.confirm(broker, topic_ids, partitions)

    async def alter_partitions(
        self, broker: NodeId, epoch: int, proposals: Sequence[Proposal]
    ) -> list[Partition | HeadraceError]:
        """See ``IsrChanges.alter``; the broker's epoch must be current."""
        term = self._active()
        term.nodes.check_epoch(NodeKey(Role.BROKER, broker), epoch)
        return await term.isr_changes.alter(broker, proposals)

    async def elect(
        self, kind: Election, ids: Sequence[PartitionId]
    ) -> list[tuple[PartitionId, Partition | HeadraceError]]:
        return await self._active_and_whole().elections.elect(kind, ids)

    async def alter_reassignments(self, targets: Targets, *, validate_only: bool) -> list[Partition | HeadraceError]:
        return await self._active_and_whole().reassignments.alter(targets, validate_only=validate_only)

    async def drain(self, broker: NodeId, *, drained: bool) -> int:
        return await self._active().nodes.drain(broker, drained=drained)

    async def describe_restore(self, *, strays: bool) -> RestoreStatus:
        """See ``strays.describe_restore``; answered by every controller."""
        _ = self.image
        term = self.candidate.term
        silent = () if term is None or not self.follower.mirror.waits_for_logs else term.restoring.silent
        return await describe_restore(self.follower, self._outside.inventories, silent, with_strays=strays)

    async def adopt_topic(
        self, topic_id: TopicId, name: str | None, partition_count: int, *, validate_only: bool
    ) -> Described:
        term = self._active_and_whole()
        return await term.strays.adopt(topic_id, name, partition_count, validate_only=validate_only)

    def list_reassignments(self, ids: Sequence[PartitionId]) -> list[Partition]:
        return under_way(self.image, ids)

    async def allocate_producer_ids(self, broker: NodeId, epoch: int) -> range:
        """See ``ProducerIds.allocate``; the broker's epoch must be current."""
        term = self._active()
        term.nodes.check_epoch(NodeKey(Role.BROKER, broker), epoch)
        return await term.producer_ids.allocate()

    async def alter_configs(
        self, resource: Resource, changes: Sequence[Alteration], *, validate_only: bool
    ) -> list[Entry]:
        return await self._active().settings.alter(resource, changes, validate_only=validate_only)

    async def alter_access(
        self, changes: Sequence[Change], mode: Mode | None, rights: Rights, *, validate_only: bool
    ) -> Altered:
        return await self._active().access.alter(changes, mode, rights, validate_only=validate_only)

    async def alter_quotas(self, changes: Sequence[QuotaChange], rights: Rights, *, validate_only: bool) -> None:
        await self._active().quotas.alter(changes, rights, validate_only=validate_only)

    async def create_key(self, wanted: WantedKey, rights: Rights, with_key: ApiKey | None = None) -> NewKey:
        return await self._active().keys.create(wanted, rights, with_key)

    async def delete_keys(self, ids: Sequence[KeyId], rights: Rights) -> None:
        await self._active().keys.delete(ids, rights)

    async def create_user(self, name: str, verifiers: Sequence[Verifier], rights: Rights) -> None:
        await self._active().users.create(name, verifiers, rights)

    async def change_password(self, name: str, verifiers: Sequence[Verifier], grace_ms: int, rights: Rights) -> None:
        await self._active().users.change_password(name, verifiers, grace_ms, rights)

    async def delete_user(self, name: str, rights: Rights, *, cascade: bool) -> None:
        await self._active().users.delete(name, rights, cascade=cascade)

    def begin_login(self, mechanism: str, message: bytes, address: str) -> Step:
        return self._active().logins.begin(mechanism, message, address)

    async def finish_login(self, exchange_id: str, message: bytes) -> Step:
        return await self._active().logins.finish(exchange_id, message)

    def describe_configs(self, resource: Resource) -> list[Entry]:
        """All settings of a resource; see ``core.settings.describe``."""
        return describe(self.image, resource)

    def list_topics(self, after: str, limit: int, *, include_internal: bool, rights: Rights = EVERYTHING) -> Page:
        """
        Topics in order of their names, those that the caller may not describe left out.

        Raises:
            Rejected: a limit out of bounds.
        """
        if not 1 <= limit <= 10_000:
            raise Rejected(f"limit takes 1 to 10000, not {limit}; ask for the rest with after")
        image = self.image
        shown = sorted(
            name
            for name, id in image.topic_ids.items()
            if (include_internal or not image.topics[id].internal)
            and rights.shows(Operation.DESCRIBE, ResourceType.TOPIC, name)
        )
        rest = [n for n in shown if n > after]
        topics = [image.topics[image.topic_ids[n]] for n in rest[:limit]]
        return Page(topics, len(rest) > limit, len(shown))

    def describe_topic(self, name: str) -> Described | None:
        """A topic with its partitions; None: there is none."""
        image = self.image
        topic = image.topic(name)
        return None if topic is None else Described(topic, image.partitions_of(topic))

    def describe_cluster(self) -> Status:
        image = self.image
        term = self.candidate.term
        behind = {} if term is None else term.nodes.behind()
        return Status(image, self._health(image), ownership(image), self.follower.reachable, behind)

    def gauges(self) -> dict[str, float]:
        """What this controller looks like now, by name; cheap, and safe from another thread."""
        image, term = self.follower.mirror.image, self.candidate.term
        health, owned = self._health(image), ownership(image)
        view = self.follower.reader.view  # as it was last read: reading is the event loop's
        return {
            "active": float(term is not None),
            "terms": self.candidate.terms,
            "controller_epoch": 0 if term is None else term.epoch,
            "leader_moves": 0 if term is None else term.settling.moves,
            "unclean_elections": 0 if term is None else term.settling.unclean,
            "balanced_recoveries": 0 if term is None else term.elections.balanced,
            "leaders_given_back": 0 if term is None else term.elections.given_back,
            "isr_changes": 0 if term is None else term.isr_changes.taken,
            "isr_changes_refused": 0 if term is None else term.isr_changes.refused,
            "metadata_revision": image.revision,
            "restore_unfinished": float(self.follower.mirror.waits_for_logs),
            "store_reachable": float(self.follower.reachable),
            "topics": len(image.topics),
            "partitions": len(image.partitions),
            "offline_partitions": health.offline,
            "under_replicated_partitions": health.under_replicated,
            "under_min_isr_partitions": health.under_min_isr,
            "not_preferred_partitions": health.not_preferred,
            "reassigning_partitions": health.reassigning,
            "recovering_partitions": health.recovering,
            "feature_level": image.feature_level,
            "issuer_keys_age_seconds": 0 if term is None else term.issuers.keys_age_ms() / 1_000,
            "access_mode": float(view.mode),
            "access_vouched_full": float(view.vouched_full),
            "breakglass": float(breakglass.is_open(image.access)),
            "nodes": len(image.nodes),
            "fenced_nodes": sum(n.fenced for n in image.nodes.values()),
            "pending_deletions": len(image.deletions),
            "pending_removals": len(image.removals),
            "drained_brokers": sum(n.drained for n in image.nodes.values()),
            "shards": owned.shards,
            "unowned_shards": owned.unowned,
            "shard_moves": 0 if term is None else term.shards.moves,
            "watchers": self.feed.watchers,
            "watcher_overflows": self.feed.overflows,
        }

    def _health(self, image: ClusterImage) -> Health:
        """Reckoned once per image: a scrape asks for it again and again, from another thread."""
        known = self._examined
        if known is None or known[0] is not image:
            known = self._examined = (image, examine(image))
        return known[1]

    def _active(self) -> Term:
        term = self.candidate.term
        if term is not None:
            term.check()
            return term
        if not self.follower.reachable:
            raise MetadataUnavailable("the metadata store cannot be reached; nothing was changed, try again later")
        active = self.image.active_controller
        if active is None or active.id in {NO_NODE, self._config.node_id}:
            raise NotController("no controller is active just now; one is being elected, try again in a moment")
        hint = None if active.grpc is None else str(active.grpc)
        raise NotController(f"controller {active.id} is active; ask it at {hint}", endpoint_hint=hint)

    def _active_and_whole(self) -> Term:
        """The term, unless the metadata was restored and it is not known yet what there is."""
        term = self._active()
        mirror = self.follower.mirror
        if mirror.waits_for_logs and mirror.restore is not None:
            missing = ", ".join(map(str, mirror.restore.list_missing(mirror.image)))
            why = f"brokers {missing} have not joined; start them" if missing else "try again in a moment"
            raise MetadataUnavailable(
                "the metadata was restored from a backup, and no partition has a leader until all brokers' "
                f"logs were compared: {why}"
            )
        return term

    def _new_term(self, tasks: TaskRunner, elected_at: int, epoch: int) -> Term:
        return Term(
            config=self._config,
            outside=self._outside,
            follower=self.follower,
            tasks=tasks,
            streams=self._streams,
            elected_at=elected_at,
            epoch=epoch,
        )

"""
A node's tie to the cluster: registers it, says that it lives, follows the cluster image, and takes its leave.

Brokers, coordinators and admin services open one ``ControllerClient`` each. It finds the active controller by itself
and keeps on trying for as long as it is open: controllers may be away for any time, the node then goes on with the
image it has. One event loop; heartbeats come from a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final, NamedTuple

from headrace_common.adapters.controller_calls import ControllerCalls
from headrace_common.adapters.controller_heartbeat import BeatAnswered, BeatRefused, HeartbeatThread, MakeHeartbeats
from headrace_common.adapters.controller_registration import (
    Registered,
    Registration,
    decode_registration,
    register_request,
)
from headrace_common.adapters.controller_route import ControllerRoute
from headrace_common.adapters.controller_stream import MetadataStream
from headrace_common.core.access.rows import Mode
from headrace_common.core.access.sessions import SIGNERS
from headrace_common.core.errors import (
    Busy,
    DuplicateRegistration,
    HeadraceError,
    Moved,
    NotRegistered,
    StaleBrokerEpoch,
    UnknownOutcome,
)
from headrace_common.core.ids import Endpoint, NodeId, PartitionId, TopicId
from headrace_common.core.image import EMPTY_IMAGE, ClusterImage, NodeKey, Role, ShardKind
from headrace_common.rpc.channels import PLAIN, Security
from headrace_common.rpc.convert import node_key_to_proto, partition_ref_to_proto, shard_kind_to_proto
from headrace_common.rpc.node_gate import KnownNodes, NodeGate, OnBehalf, Tokens, node_security
from headrace_common.runtime.access_gate import (
    Access,
    current_bearer,
    current_certificate,
    current_host,
    nobody_calls,
)
from headrace_common.runtime.clock import Clock
from headrace_common.runtime.entropy import backoff_ms
from headrace_common.runtime.service_tls import ServiceTls
from headrace_common.runtime.session_key import SessionKey, make_session_key
from headrace_common.runtime.tasks import TaskRunner, first_of
from headrace_common.runtime.threads import run_in_thread
from headrace_proto.v1 import controller_pb2 as pb

CALL_MS_MAX: Final = 30_000.0
"""How long one call may take over all its tries."""
_REGISTER_ROUND_MS: Final = 10_000.0
_KEYS_WANTED_EARLY_MS: Final = 30_000.0
"""How often the wish for an issuer's keys makes a heartbeat early; else it goes with the next one."""

_log = logging.getLogger(__name__)

__all__ = ["ControllerClient", "Registered", "Registration", "Signer"]


class Signer(NamedTuple):
    """What a process signs with, and the registration that has its public half."""

    key: SessionKey
    epoch: int


class ControllerClient:
    """Made by ``open``. Everything here runs on the event loop that opened it."""

    def __init__(
        self,
        calls: ControllerCalls,
        key: NodeKey,
        clock: Clock,
        tasks: TaskRunner,
        security: Security = PLAIN,
        beats: MakeHeartbeats = HeartbeatThread,
    ) -> None:
        self.key = key
        self.security = security
        """How this node shows who it is, to any other node."""
        self.gate = NodeGate()
        """Which calls come from nodes, for the servers of this node."""
        self.access = Access(lambda: self.image, self.gate, clock)
        """Who calls and what they may, for the servers of this node."""
        self.calls = calls
        """For requests that are forwarded as they are."""
        self.session_key: SessionKey | None = None
        """With what this process signs, once ``need_session_key`` has made it."""
        self._key_is_made = False
        self._clock = clock
        self._tasks = tasks
        self._changed = asyncio.Event()
        self._registration: Registration | None = None
        self._registered: Registered | None = None
        self._fenced = True
        self._contact_ms: float | None = None
        self._heard_ms: float | None = None
        self._may_shut_down = False
        self._joining = False
        self._unseen_outside = 0
        """Epoch of the registration of which was said that it lacks the external address."""
        self._keys_wanted_ms: dict[str, float] = {}
        """When the keys of an issuer were last wished for early; by alias, so there are few."""
        self._stream = MetadataStream(calls, key, clock, self._take)
        self._beats = beats(key, calls.route, clock, self._on_answer, security)

    @staticmethod
    @asynccontextmanager
    async def open(
        bootstrap: Sequence[Endpoint],
        *,
        role: Role,
        id: int,
        clock: Clock,
        tasks: TaskRunner,
        tokens: Tokens | None = None,
        tls: ServiceTls | None = None,
        beats: MakeHeartbeats = HeartbeatThread,
    ) -> AsyncIterator[ControllerClient]:
        """
        A client that follows the image from now on; it is not registered yet.

        Args:
            bootstrap: controllers to begin with, at least one; it learns of others.
            tokens: what it shows to other nodes of the cluster; None: nothing.
            tls: its certificates, which it shows instead.
            beats: what says that it lives; where there are no threads, another than a thread.
            tasks: runs its loops. When another process takes over this node's id, a loop fails with
                ``DuplicateRegistration``, so that this process stops.
        """
        key, route = NodeKey(role, NodeId(id)), ControllerRoute(bootstrap)
        known = KnownNodes(lambda: client.image, lambda: route.addresses)
        security = node_security(
            key,
            tokens,
            known,
            tls and tls.dialing,
            OnBehalf(
                current_bearer,
                current_certificate,
                current_host,
                nobody=lambda: client.access.view.mode is Mode.PERMISSIVE and nobody_calls(),
            ),
            closed=lambda: client.access.view.mode is Mode.CLOSED,
        )
        calls = ControllerCalls(route, clock, security)
        client = ControllerClient(calls, key, clock, tasks, security, beats)
        client.gate = NodeGate(
            tokens, lambda: client.image, tls and tls.trust_domain, also_plain=bool(tls and tls.also_plain)
        )
        client.access = Access(lambda: client.image, client.gate, clock)
        client.access.heard_ms = lambda: client._heard_ms
        client.access.tokens.on_unknown_key = client.want_keys
        follower = tasks.start(client._stream.follow(), name="follow-metadata")
        client._beats.start()
        try:
            yield client
        finally:
            await client._beats.stop()
            follower.cancel()
            await asyncio.wait([follower])
            await calls.close()

    # --- state ------------------------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The newest image; empty (revision 0) until the first snapshot came."""
        return self._stream.image

    @property
    def registered(self) -> Registered | None:
        """The newest registration; None before the first. Its epoch changes when the node had to join again."""
        return self._registered

    @property
    def fenced(self) -> bool:
        """Whether the controller, in its last answer, held this node for fenced."""
        return self._fenced

    @property
    def contact_ms(self) -> float | None:
        """
        When the last heartbeat was sent that a controller answered, on the clock's monotonic time; None: not yet under
        the present registration. Until a session later nobody is told that this node is dead.
        """
        return self._contact_ms

    async def images(self) -> AsyncIterator[ClusterImage]:
        """
        The image each time it changed, newest only: a slow reader skips, never falls behind. Begins with the present
        one where there is one; never ends.
        """
        seen = EMPTY_IMAGE
        while True:
            while self._stream.image is seen:
                await self._changed.wait()
            seen = self._stream.image
            yield seen

    async def wait_until_unfenced(self) -> None:
        """Return once the controller lets this node take part."""
        await self._until(lambda: self._registered is not None and not self._fenced)

    # --- joining and leaving ----------------------------------------------------------------------------------

    async def register(self, registration: Registration, *, want_fenced: bool = False) -> Registered:
        """
        Join the cluster, however long it takes until a controller answers, and begin to send heartbeats.

        Args:
            want_fenced: stay fenced until ``want_unfenced`` (storage is still being recovered).

        Raises:
            InconsistentClusterId: the data belongs to another cluster.
            UnsupportedVersion: the cluster's feature level is above what this node knows.
            DuplicateRegistration: another living process has this id.
            Rejected: the registration itself is wrong.
        """
        assert registration.node.key == self.key, "a client registers the node it was opened for"
        if self.session_key is not None:
            registration = _signing(registration, self.session_key)
        self._registration = registration
        self._beats.update(want_fenced=want_fenced, feature_level_max=registration.node.feature_level_max)
        return await self._join(registration)

    def want_unfenced(self) -> None:
        """Storage is ready: ask to take part from the next heartbeat on, which goes out at once."""
        self._beats.update(want_fenced=False)
        self._beat_at_once()

    def say_disk_low(self, low: bool) -> None:
        """Say with each heartbeat, the next going out at once, whether this broker's disk is below its reserve."""
        self._beats.update(disk_low=low)
        self._beat_at_once()

    def want_keys(self, alias: str) -> None:
        """Have the active controller ask an issuer for its keys: somebody shows a token by one that is not known."""
        wanted, now_ms = self._beats.beat.keys_wanted, self._clock.monotonic_ms()
        early = now_ms >= self._keys_wanted_ms.get(alias, now_ms - _KEYS_WANTED_EARLY_MS) + _KEYS_WANTED_EARLY_MS
        if early:
            self._keys_wanted_ms[alias] = now_ms
        if early or alias not in wanted:
            self._beats.update(keys_wanted=tuple({*wanted, alias}), at_once=early)

    def need_session_key(self) -> None:
        """
        Make a key with which this process signs, and have it known to all nodes; soon, with the next heartbeat. Any
        number of calls make one.
        """
        if not self._key_is_made:
            self._key_is_made = True
            self._tasks.start(self._make_session_key(), name="session key")

    async def _make_session_key(self) -> None:
        key = await run_in_thread(make_session_key)
        self.session_key = key
        if self._registration is not None:
            self._registration = _signing(self._registration, key)
        self._beats.update(session_key=key.public, at_once=True)

    async def wait_for_session_key(self, timeout_ms: float) -> Signer | None:
        """With what this process signs, once the newest image has its public half: other nodes have it soon, too."""
        self.need_session_key()
        if self._signer() is None:
            await first_of(self._clock.sleep_ms(timeout_ms), self._until(lambda: self._signer() is not None))
        return self._signer()

    def _signer(self) -> Signer | None:
        key, node = self.session_key, self.image.nodes.get(self.key)
        if key is None or node is None or node.session_key != key.public:
            return None
        return Signer(key, node.epoch)

    async def leave(self, timeout_ms: float) -> bool:
        """
        Controlled shutdown: ask that leaders move away and wait for it; then heartbeats stop.

        Returns:
            True when nothing depends on this node any more; False after ``timeout_ms``, or unregistered.
        """
        if self._registered is None:
            await self._beats.stop()
            return False
        self._may_shut_down = False
        self._beats.update(want_shutdown=True)
        self._beat_at_once()
        await first_of(self._clock.sleep_ms(timeout_ms), self._until(lambda: self._may_shut_down))
        await self._beats.stop()
        return self._may_shut_down

    async def unregister(self, *, timeout_ms: float = CALL_MS_MAX) -> None:
        """
        Leave for good: no heartbeats any more, and the registration is removed.

        Raises:
            HeadraceError: refused (a broker that holds replicas), or no controller answered in time.
        """
        await self._beats.stop()
        key = node_key_to_proto(self.key)
        request = pb.UnregisterNodeRequest(role=key.role, id=key.id)
        await self.calls.active(lambda stub: stub.UnregisterNode, request, timeout_ms=timeout_ms)

    # --- calls of a registered node ---------------------------------------------------------------------------

    async def alter_partitions(
        self, changes: Sequence[pb.AlterPartition], *, timeout_ms: float = CALL_MS_MAX
    ) -> pb.AlterPartitionsResponse:
        """
        Ask for new ISRs of partitions that this broker leads.

        Raises:
            HeadraceError: nothing is known of any of them; the same may be asked again.
        """
        request = pb.AlterPartitionsRequest(broker_id=self.key.id, broker_epoch=self._epoch(), partitions=changes)
        return await self.calls.active(lambda stub: stub.AlterPartitions, request, timeout_ms=timeout_ms)

    async def confirm_deletions(
        self,
        topic_ids: Sequence[TopicId],
        partitions: Sequence[PartitionId] = (),
        *,
        timeout_ms: float = CALL_MS_MAX,
    ) -> None:
        """
        Say that this broker's logs of these topics, and of these single partitions, are gone.

        Raises:
            HeadraceError: nothing was noted, or it is unknown; say it again later.
        """
        request = pb.ConfirmDeletionsRequest(
            broker_id=self.key.id,
            broker_epoch=self._epoch(),
            topic_ids=topic_ids,
            partitions=map(partition_ref_to_proto, partitions),
        )
        await self.calls.active(lambda stub: stub.ConfirmDeletions, request, timeout_ms=timeout_ms)

    async def allocate_producer_ids(self, *, timeout_ms: float = CALL_MS_MAX) -> range:
        """
        Producer ids that nobody else ever gets.

        Raises:
            HeadraceError: none were given; a block may be lost, which costs nothing.
        """
        request = pb.AllocateProducerIdsRequest(broker_id=self.key.id, broker_epoch=self._epoch())
        answer = await self.calls.active(lambda stub: stub.AllocateProducerIds, request, timeout_ms=timeout_ms)
        return range(answer.first_id, answer.first_id + answer.count)

    async def ensure_internal_topic(self, kind: ShardKind, *, timeout_ms: float = CALL_MS_MAX) -> int:
        """
        Have an internal topic made unless it is there; the revision of an image that has it.

        Raises:
            CoordinatorNotAvailable: it cannot be made now; the text says what it waits for.
            HeadraceError: no controller answered in time.
        """
        request = pb.EnsureInternalTopicRequest(kind=shard_kind_to_proto(kind))
        answer = await self.calls.active(lambda stub: stub.EnsureInternalTopic, request, timeout_ms=timeout_ms)
        return int(answer.revision)

    def _epoch(self) -> int:
        if self._registered is None:
            raise NotRegistered(f"{self.key} is not registered yet; wait until a controller has answered")
        return self._registered.epoch

    # --- inside -----------------------------------------------------------------------------------------------

    async def _join(self, registration: Registration) -> Registered:
        self._joining = True
        try:
            answer = await self._register_until_answered(register_request(registration, self.access.auditing.start))
        finally:
            self._joining = False
        self._registered = decode_registration(answer)
        self._fenced = True
        self._beats.update(epoch=answer.epoch, interval_ms=float(self._registered.heartbeat_interval_ms))
        self._beat_at_once()
        _log.info("registered", extra={"node_key": str(self.key), "epoch": answer.epoch, "revision": answer.revision})
        return self._registered

    async def _register_until_answered(self, request: pb.RegisterNodeRequest) -> pb.RegisterNodeResponse:
        tries = 0
        while True:
            try:
                return await self.calls.active(lambda stub: stub.RegisterNode, request, timeout_ms=_REGISTER_ROUND_MS)
            except (UnknownOutcome, Busy, Moved) as error:
                tries += 1
                _log.warning("no controller took the registration yet: %s", error, extra={"round": tries})
                await self._clock.sleep_ms(backoff_ms(tries, ms_max=5_000))

    def _on_answer(self, answer: BeatAnswered | BeatRefused) -> None:
        if self._registered is None or answer.epoch != self._registered.epoch:
            return
        if isinstance(answer, BeatAnswered):
            if answer.fenced != self._fenced:
                _log.info("fenced" if answer.fenced else "unfenced", extra={"epoch": answer.epoch})
            self._fenced = answer.fenced
            self._contact_ms = self._heard_ms = answer.sent_ms
            self._may_shut_down = answer.may_shut_down
            start, events = self.access.auditing.standing
            wanted = tuple(alias for alias in self._beats.beat.keys_wanted if alias not in answer.keys_wanted)
            self._beats.update(waiting=self._waits(), audit_start=start, audit_events=events, keys_wanted=wanted)
            self._stream.prefer(answer.controller)
            self._notify()
        elif isinstance(answer.error, NotRegistered | StaleBrokerEpoch):
            self._start_rejoining(answer.error)

    def _waits(self) -> bool:
        beat = self._beats.beat
        if beat.want_shutdown:
            return not self._may_shut_down
        caught_up = self._registered is not None and self._stream.image.revision >= self._registered.revision
        return self._fenced and caught_up and not beat.want_fenced

    def _beat_at_once(self) -> None:
        self._beats.update(waiting=self._waits(), at_once=True)

    def _start_rejoining(self, error: HeadraceError) -> None:
        if self._joining or self._beats.beat.want_shutdown:
            return
        self._joining = True
        self._fenced = True
        self._contact_ms = None
        self._notify()
        _log.warning("the controller does not know this registration any more: %s; joining again", error)
        self._tasks.start(self._rejoin(), name="join-again")

    async def _rejoin(self) -> None:
        assert self._registration is not None
        assert self._registered is not None
        known = self._registered
        await self._join(replace(self._registration, cluster_id=known.cluster_id, previous_epoch=known.epoch))

    def _take(self, image: ClusterImage) -> None:
        self._heard_ms = self._clock.monotonic_ms()
        self._stop_if_replaced(image)
        self._warn_if_unseen(image)
        self.access.look()
        if self.key.role in SIGNERS and self.access.view.users:
            self.need_session_key()
        active = image.active_controller
        controllers = [n.grpc for n in image.nodes.values() if n.key.role is Role.CONTROLLER]
        self.calls.route.learned(
            active.grpc if active is not None and active.id >= 0 else None,
            -1 if active is None else active.epoch,
            controllers,
        )
        joined = self._registered is not None and self._beats.beat.image_revision < self._registered.revision
        self._beats.update(image_revision=image.revision)
        if joined and self._waits():
            self._beat_at_once()
        self._notify()

    def _stop_if_replaced(self, image: ClusterImage) -> None:
        node = image.nodes.get(self.key)
        if node is None or self._registered is None or self._registration is None or self._joining:
            return
        if node.epoch > self._registered.epoch and node.incarnation != self._registration.node.incarnation:
            raise DuplicateRegistration(
                f"another process has registered as {self.key} (epoch {node.epoch}, at {node.grpc}); this one stops. "
                "Give each process an id of its own"
            )

    def _warn_if_unseen(self, image: ClusterImage) -> None:
        """A controller of a version before external listeners drops the address from each registration it writes."""
        node = image.nodes.get(self.key)
        if node is None or self._registration is None or self._registration.node.external is None:
            return
        lacks = node.external is None and node.incarnation == self._registration.node.incarnation
        if lacks and node.epoch != self._unseen_outside:
            self._unseen_outside = node.epoch
            _log.warning(
                "an older controller wrote this registration without the external address: clients from outside do not "
                "see this node until it registers again; restart it when all controllers are of this version",
                extra={"external": str(self._registration.node.external), "epoch": node.epoch},
            )

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await self._changed.wait()


def _signing(registration: Registration, key: SessionKey) -> Registration:
    """With the public half of the node's key."""
    return replace(registration, node=replace(registration.node, session_key=key.public))

"""
The coordinator of the cluster in memory: groups of both protocols, and committed offsets. Nothing is durable.

Its state is guarded by one lock, for members may live on several event loops. Tests take it ``down``, make it
``silent``, or look into ``groups`` and ``offsets``.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Final

from libs.sdk.tests.twin.memory_classic import MemoryClassicGroup
from libs.sdk.tests.twin.memory_member import Topics
from libs.sdk.tests.twin.memory_pending import PendingOffsets, Positions
from libs.sdk.tests.twin.memory_target import MemoryTargetGroup

from headrace._transport.port import Coordinator
from headrace.errors import CoordinatorNotAvailable, ErrorCode, HeadraceError, InvalidGroupId, NetworkFailed
from headrace_common.core.ids import NodeId, TopicPartition
from headrace_proto.v1 import coordinator_pb2 as pb
from headrace_proto.v1 import errors_pb2

COORDINATOR: Final = Coordinator(NodeId(101), "memory:101")
GROUP_ID_LENGTH_MAX: Final = 249


class MemoryGroups:
    """
    All groups.

    Args:
        topics: what there is; called whenever it matters.
    """

    def __init__(self, topics: Callable[[], Topics]) -> None:
        self.groups: dict[str, MemoryClassicGroup | MemoryTargetGroup] = {}
        self.offsets: dict[str, dict[TopicPartition, pb.CommittedOffset]] = {}
        self.pending = PendingOffsets()
        """What undecided transactions hold; ``pending.unstable(group_id)`` names the partitions."""
        self.down = False
        """Nobody has the groups; see ``stop``."""
        self.silent = False
        """It answers nothing, and keeps every connection."""
        self.rejoin_grace_ms = 3_000.0
        """How long a member whose stream broke keeps its place."""
        self.heartbeat_interval_ms = 3_000
        """Told to members of the server-side protocol."""
        self.lock = threading.RLock()
        self._topics = topics
        self._streams: set[MemoryMembershipStream] = set()

    # --- what tests do ----------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """It is gone: streams break, nobody has the groups until ``start``. Groups and offsets are kept."""
        with self.lock:
            self.down = True
            for stream in list(self._streams):
                stream.broke(NetworkFailed("the coordinator was stopped"))

    def start(self) -> None:
        """Somebody has the groups again."""
        self.down = False

    def evict(self, group_id: str, member_id: str) -> None:
        """Put a member out, as when its session ends."""
        with self.lock:
            self.groups[group_id].remove(member_id)

    def topics_changed(self) -> None:
        """There are other topics, or more partitions."""
        with self.lock:
            for group in self.groups.values():
                if isinstance(group, MemoryTargetGroup):
                    group.topics_changed()

    # --- what transports ask ----------------------------------------------------------------------------------------

    def check(self) -> None:
        """Raises: ``CoordinatorNotAvailable`` while it is down."""
        if self.down:
            raise CoordinatorNotAvailable("nobody has the group now")

    def find(self, group_id: str) -> Coordinator:
        """Who has the group."""
        if not 0 < len(group_id) <= GROUP_ID_LENGTH_MAX:
            raise InvalidGroupId(f"a group id has 1 to {GROUP_ID_LENGTH_MAX} characters")
        self.check()
        return COORDINATOR

    def open(self) -> MemoryMembershipStream:
        """A stream of a member; on its event loop."""
        stream = MemoryMembershipStream(self)
        if self.down:
            stream.broke(NetworkFailed("the coordinator cannot be reached"))
        with self.lock:
            self._streams.add(stream)
        return stream

    def said(self, stream: MemoryMembershipStream, request: pb.MembershipRequest) -> None:
        """A member says something."""
        with self.lock:
            if self.down or self.silent:
                return
            kind = request.WhichOneof("request")
            group = self._group(request.group_id, kind == "consumer_heartbeat")
            stream.group_id = request.group_id
            match kind, group:
                case "consumer_heartbeat", MemoryTargetGroup():
                    stream.member_id = request.consumer_heartbeat.member_id
                    group.beat(stream, request.consumer_heartbeat)
                case "classic_join", MemoryClassicGroup():
                    group.join(stream, request.classic_join)
                case "classic_sync", MemoryClassicGroup():
                    group.sync(stream, request.classic_sync)
                case "classic_heartbeat", MemoryClassicGroup():
                    group.beat(stream, request.classic_heartbeat)
                case "leave", MemoryClassicGroup():
                    group.remove(request.leave.member_id)
                    stream.push(pb.MembershipResponse(left=pb.LeftGroup()))
                case _:
                    joined = pb.ClassicJoined(error=errors_pb2.INCONSISTENT_GROUP_PROTOCOL, message="other protocol")
                    stream.push(pb.MembershipResponse(classic_joined=joined))

    def _group(self, group_id: str, server_side: bool) -> MemoryClassicGroup | MemoryTargetGroup:
        """The group; one without members takes the protocol of whoever comes."""
        group = self.groups.get(group_id)
        if group is None or (not group.members and server_side != isinstance(group, MemoryTargetGroup)):
            group = MemoryTargetGroup(self._topics, self.heartbeat_interval_ms) if server_side else MemoryClassicGroup()
            self.groups[group_id] = group
        return group

    def gone(self, stream: MemoryMembershipStream) -> None:
        """A stream has ended: its member has a while to come back."""
        with self.lock:
            self._streams.discard(stream)
            group = self.groups.get(stream.group_id)
            member = None if group is None else next((m for m in group.members.values() if m.line is stream), None)
            if member is not None and not member.away and member.instance_id is None:
                member_id = member.member_id
                stream.later(self.rejoin_grace_ms, lambda: self._expire(stream, member_id))

    def _expire(self, stream: MemoryMembershipStream, member_id: str) -> None:
        group = self.groups.get(stream.group_id)
        if self.down:
            stream.later(self.rejoin_grace_ms, lambda: self._expire(stream, member_id))
        elif group is not None and member_id in group.members and group.members[member_id].line is stream:
            group.remove(member_id)

    def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        """Take positions of a member, or of an administrator while there are no members."""
        with self.lock:
            self.check()
            answer, positions = self._taken(request, self._refuses(request))
            self.offsets.setdefault(request.group_id, {}).update(positions)
            for tp in positions:
                self.pending.overwritten(request.group_id, tp)
        return answer

    def hold(self, request: pb.TxnOffsetCommitRequest) -> pb.CommitOffsetsResponse:
        """
        Take positions that count once their transaction is committed.

        Raises:
            InvalidProducerEpoch: the transaction has ended.
        """
        with self.lock:
            self.check()
            refused = self._refuses(request) if request.member_id or request.generation >= 0 else None
            answer, positions = self._taken(request, refused)
            if positions:
                self.pending.add(request.group_id, request.producer_id, request.producer_epoch, positions)
        return answer

    def end_transaction(self, producer_id: int, epoch: int, *, commit: bool) -> None:
        """A marker for all groups: apply or drop what the transaction held."""
        with self.lock:
            for group_id, positions in self.pending.end(producer_id, epoch).items():
                if commit:
                    self.offsets.setdefault(group_id, {}).update(positions)

    def _taken(
        self, request: pb.CommitOffsetsRequest | pb.TxnOffsetCommitRequest, refused: ErrorCode | None
    ) -> tuple[pb.CommitOffsetsResponse, Positions]:
        """The answer, and what it takes in."""
        answer, positions = pb.CommitOffsetsResponse(), Positions()
        for entry in request.offsets:
            result = answer.results.add(topic=entry.topic, partition=entry.partition)
            known = self._topics().get(entry.topic)
            if refused is None and (known is None or not 0 <= entry.partition < known[1]):
                result.error, result.message = errors_pb2.UNKNOWN_TOPIC_OR_PARTITION, "the partition does not exist"
            elif refused is not None:
                result.error, result.message = errors_pb2.ErrorCode.ValueType(refused), refused.name
            else:
                positions[TopicPartition(entry.topic, entry.partition)] = pb.CommittedOffset(
                    topic=entry.topic,
                    partition=entry.partition,
                    offset=entry.offset,
                    leader_epoch=entry.leader_epoch,
                    metadata=entry.metadata,
                )
        return answer, positions

    def _refuses(self, request: pb.CommitOffsetsRequest | pb.TxnOffsetCommitRequest) -> ErrorCode | None:
        group = self.groups.get(request.group_id)
        if group is None or not group.members:
            return ErrorCode.UNKNOWN_MEMBER_ID if request.member_id else None
        return group.refuses_commit(request.member_id, request.generation)

    def fetch(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        """What is committed."""
        with self.lock:
            self.check()
            known = self.offsets.get(request.group_id, {})
            wanted = [TopicPartition(e.topic, number) for e in request.partitions for number in e.partitions]
            unstable = self.pending.unstable(request.group_id) if request.require_stable else frozenset()
            answer = pb.FetchOffsetsResponse()
            for tp in wanted or known:
                nothing = pb.CommittedOffset(topic=tp.topic, partition=tp.partition, offset=-1, leader_epoch=-1)
                if tp in unstable:
                    nothing.error = errors_pb2.UNSTABLE_OFFSET_COMMIT
                    nothing.message = "a transaction that is not decided has a position"
                answer.offsets.append(nothing if tp in unstable else known.get(tp, nothing))
        return answer


class MemoryMembershipStream:
    """See ``port.MembershipStream``."""

    def __init__(self, groups: MemoryGroups) -> None:
        self._groups = groups
        self._loop = asyncio.get_running_loop()
        self._queue: asyncio.Queue[pb.MembershipResponse | HeadraceError] = asyncio.Queue()
        self._over: HeadraceError | None = None
        self._closed = False
        self.group_id = ""
        self.member_id = ""

    def send(self, request: pb.MembershipRequest) -> None:
        """Carried out at once."""
        if self._over is None:
            copy = pb.MembershipRequest()
            copy.CopyFrom(request)
            self._groups.said(self, copy)

    async def receive(self) -> pb.MembershipResponse:
        """The next that the coordinator says."""
        if self._over is not None and (self._closed or self._queue.empty()):
            raise self._over
        said = await self._queue.get()
        if isinstance(said, HeadraceError):
            raise said
        return said

    async def close(self) -> None:
        """End the stream."""
        self._closed = True
        self.broke(NetworkFailed("the stream was closed by this client"))

    # --- what groups do, from any thread ------------------------------------------------------------------------------

    def push(self, response: pb.MembershipResponse) -> None:
        """Say something."""
        if not self._groups.silent:
            self._put(response)

    def broke(self, error: HeadraceError) -> None:
        """It is over."""
        if self._over is None:
            self._over = error
            self._put(error)
            self._groups.gone(self)

    def _put(self, said: pb.MembershipResponse | HeadraceError) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._queue.put_nowait, said)

    def later(self, ms: float, call: Callable[[], None]) -> None:
        """Call after a time, under the lock of the groups."""

        def locked() -> None:
            with self._groups.lock:
                call()

        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(lambda: self._loop.call_later(ms / 1000, locked))

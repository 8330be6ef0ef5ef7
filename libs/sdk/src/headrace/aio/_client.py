"""
Decides what a client believes about the cluster, and when it asks again. Producers and consumers share the class.

Metadata is asked for by one task at a time, whatever the number of reasons; repeated asking backs off. While a leader
is in doubt it does not, for a time: every 100 ms another broker is asked, until one knows of a newer leader. What was
learned is kept until something newer is known, so a cluster that cannot be reached does not make a client forget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from headrace._core.remedies import UNKNOWN_TOPIC_GRACE_MS, is_refusal
from headrace._runtime import Tasks
from headrace._transport.newest import Newest
from headrace._transport.port import Transport
from headrace.errors import (
    ClusterUnreachable,
    ErrorCode,
    HeadraceError,
    InconsistentClusterId,
    MetadataUnavailable,
    WaitTimedOut,
    error_for,
)
from headrace.records import TopicPartition
from headrace.settings import ClientSettings
from headrace_common.core.errors import unknown_topic
from headrace_common.core.ids import NO_NODE, NodeId, check_topic_name
from headrace_common.runtime.clock import Clock, SystemClock, limit_ms
from headrace_proto.v1 import broker_pb2 as pb
from headrace_proto.v1 import errors_pb2

URGENT_INTERVAL_MS: Final = 100
"""While a leader is in doubt metadata is asked for this often…"""

URGENT_MS: Final = 12_000
"""…for this long after the doubt arose: longer than a session of a broker, after which it is deposed."""

INTERVAL_MS_MIN: Final = 10

DOUBT_MS: Final = 3_000
"""A doubt that nobody repeats for so long is over; at least thrice the longest pause between repetitions."""


class Leader(NamedTuple):
    """Who leads a partition."""

    broker: NodeId
    """-1: nobody, now."""
    epoch: int


class TopicView(NamedTuple):
    """One topic as metadata has it."""

    name: str
    topic_id: bytes
    leaders: tuple[Leader, ...]
    """By partition."""
    max_message_bytes: int

    @property
    def partitions(self) -> int:
        """How many there are; they are numbered from 0."""
        return len(self.leaders)


class ClusterClient:
    """
    The metadata cache of one client. All methods run on the client's loop.

    Args:
        on_change: called after each answer that was taken in.
    """

    def __init__(
        self,
        transport: Transport,
        settings: ClientSettings,
        *,
        clock: Clock | None = None,
        on_change: Callable[[], None] | None = None,
    ) -> None:
        self.transport = transport
        self._settings = settings
        self._clock: Clock = clock or SystemClock()
        self._on_change = on_change
        self._topics: dict[str, TopicView] = {}
        self._wanted: dict[str, HeadraceError | None] = {}
        self._hints: dict[TopicPartition, Leader] = {}
        self._doubts: dict[TopicPartition, int] = {}
        """Leader epochs that a newer one must follow."""
        self._doubted_ms = -float("inf")
        self._urgent_until_ms = -float("inf")
        self._took_ms = 0.0
        """How long the last answer took."""
        self._hurry: asyncio.Future[None] | None = None
        """What ends the pause before the next asking."""
        self._newest = Newest()
        self._asked_ms = -float("inf")
        self._learned_ms = -float("inf")
        self._streak = 0
        self._again = False
        self._elsewhere = False
        """The next asking goes to another broker than the last."""
        self._refreshing: asyncio.Task[None] | None = None
        self._round: asyncio.Future[None] | None = None
        self._failure: HeadraceError | None = None
        self._tasks = Tasks()

    @property
    def feature_level(self) -> int:
        """The cluster's, as far as is known: what may be sent and asked for beyond the first version."""
        return self._newest.feature_level

    @property
    def refusal(self) -> HeadraceError | None:
        """Why brokers tell this client nothing, if the last answer was about who asks."""
        return self._failure if self._failure is not None and is_refusal(self._failure) else None

    def find_view(self, name: str) -> TopicView | None:
        """What is believed of the topic, without waiting; asks again when that is old."""
        view = self._topics.get(name)
        if view is not None and self._clock.monotonic_ms() - self._learned_ms > self._settings.metadata_max_age_ms:
            self.refresh("metadata is old")
        return view

    def leader(self, tp: TopicPartition) -> Leader | None:
        """Who leads, as far as is known; None when the partition is not known. Broker -1: nobody does."""
        view = self.find_view(tp.topic)
        if view is None or not 0 <= tp.partition < len(view.leaders):
            return None
        known = view.leaders[tp.partition]
        hint = self._hints.get(tp)
        return hint if hint is not None and hint.epoch > known.epoch else known

    def hint(self, tp: TopicPartition, leader: Leader) -> None:
        """A broker said who leads; believed until metadata is as new."""
        known = self.leader(tp)
        if known is not None and leader.epoch > known.epoch:
            self._hints[tp] = leader

    @property
    def doubting(self) -> bool:
        """Whether some leader is in doubt."""
        return bool(self._doubts)

    def doubt(self, tp: TopicPartition, epoch: int, reason: str) -> None:
        """
        Whoever leads ``tp`` under ``epoch`` does not answer as a leader: ask until a newer one is known, or ``trust``.

        Who is known to be newer is believed meanwhile. Repeat the doubt while it lasts.
        """
        now_ms = self._clock.monotonic_ms()
        self._doubted_ms = now_ms
        known = self.leader(tp)
        if (known is None or known.epoch <= epoch or known.broker == NO_NODE) and self._doubts.get(tp, -2) < epoch:
            self._doubts[tp] = epoch
            self._urgent_until_ms = now_ms + URGENT_MS
            if self._hurry is not None and not self._hurry.done():
                self._hurry.set_result(None)
        self.refresh(reason)

    def trust(self, tp: TopicPartition) -> None:
        """The leader answered as one."""
        self._doubts.pop(tp, None)

    def _resolve_doubts(self) -> None:
        if self._clock.monotonic_ms() - self._doubted_ms > max(DOUBT_MS, 3 * self._settings.retry_backoff_max_ms):
            self._doubts.clear()
        for tp, epoch in list(self._doubts.items()):
            leader = self.leader(tp)
            if leader is None or (leader.epoch > epoch and leader.broker != NO_NODE):
                del self._doubts[tp]

    async def topic(self, name: str, timeout_ms: float) -> TopicView:
        """
        The topic, asking the cluster when it is not known.

        Raises:
            UnknownTopicOrPartition: it does not exist.
            InconsistentClusterId: another cluster answers where this one was.
            Unauthenticated, Denied: the cluster does not tell it to this client.
            ClusterUnreachable: nobody listens at any address, and nobody ever answered.
            NetworkFailed: no broker answered within ``timeout_ms``.
            WaitTimedOut: brokers answered, but not to this within ``timeout_ms``.
        """
        view = self.find_view(name)
        if view is not None:
            return view
        check_topic_name(name)
        start = self._clock.monotonic_ms()
        self._wanted.setdefault(name, None)
        try:
            async with limit_ms(timeout_ms):
                return await self._wait_until_known(name, start)
        except TimeoutError:
            if name not in self._topics:
                self._wanted.pop(name, None)
            cause = self._failure
            if cause is not None:
                raise cause from None
            raise WaitTimedOut(f"no metadata of topic {name!r} within {timeout_ms:g} ms") from None

    async def _wait_until_known(self, name: str, start_ms: float) -> TopicView:
        while True:
            await self.await_refresh(f"topic {name} is not known")
            view = self._topics.get(name)
            if view is not None:
                return view
            error = self._wanted.get(name)
            if error is None:
                failure = self._failure
                if failure is not None and (
                    isinstance(failure, InconsistentClusterId | ClusterUnreachable) or is_refusal(failure)
                ):
                    raise failure  # waiting does not bring the cluster that is meant, or a right
                continue
            unknown = error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not unknown or self._clock.monotonic_ms() - start_ms > UNKNOWN_TOPIC_GRACE_MS:
                self._wanted.pop(name, None)
                raise error

    async def all_topics(self) -> list[str]:
        """
        The names of all topics that are not internal.

        Raises:
            NetworkFailed: no broker answered.
        """
        answer = await self.transport.metadata(pb.MetadataRequest(all_topics=True))
        return sorted(t.name for t in answer.topics if not t.internal and not t.error)

    async def everything(self) -> pb.MetadataResponse:
        """
        All topics, from a broker that knows no less than what was learned before; what is known of single topics is
        then as new.

        Raises:
            MetadataUnavailable: two brokers that answered are behind; ask again.
            NetworkFailed: no broker answered.
        """
        for elsewhere in (False, True):
            answer = await self.transport.metadata(pb.MetadataRequest(all_topics=True), elsewhere=elsewhere)
            if not self._newest.is_behind(answer):
                known = self._topics.keys() | self._wanted.keys()
                news = pb.MetadataResponse(
                    cluster_id=answer.cluster_id,
                    incarnation=answer.incarnation,
                    revision=answer.revision,
                    feature_level=answer.feature_level,
                )
                news.topics.extend(topic for topic in answer.topics if topic.name in known)
                gone = known - {topic.name for topic in answer.topics}
                news.topics.extend(
                    pb.TopicMetadata(name=name, error=errors_pb2.UNKNOWN_TOPIC_OR_PARTITION) for name in gone
                )
                self._take(news)
                return answer
        raise MetadataUnavailable("brokers that answer know less of the cluster than was known before; ask again")

    def want(self, name: str) -> None:
        """Ask for the topic, now and whenever something is asked, until it is known."""
        if name not in self._topics:
            self._wanted.setdefault(name, None)
            self.refresh(f"topic {name} is not known")

    def forget(self, names: Iterable[str]) -> None:
        """Stop asking for these topics."""
        for name in names:
            self._topics.pop(name, None)
            self._wanted.pop(name, None)

    def refresh(self, reason: str, *, elsewhere: bool = False) -> None:
        """
        Ask again soon, unless that is under way; ``reason`` is for people who read the task's name. With ``elsewhere``
        another broker than the last is asked: one that is cut off from the controllers answers with what it knew.
        """
        self._elsewhere = self._elsewhere or elsewhere
        if self._refreshing is None or self._refreshing.done():
            self._round = asyncio.get_running_loop().create_future()
            self._refreshing = self._tasks.start(self._refresh(), f"metadata: {reason}")
        else:
            self._again = True

    async def await_refresh(self, reason: str) -> None:
        """Ask again, and return when the next answer or failure is in."""
        self.refresh(reason)
        assert self._round is not None, "refresh has made it"
        await asyncio.shield(self._round)

    async def _refresh(self) -> None:
        while True:
            await self._pause()
            self._again = False
            self._asked_ms = self._clock.monotonic_ms()
            names = set(self._wanted)
            elsewhere, self._elsewhere = self._elsewhere or self.doubting, False
            try:
                request = pb.MetadataRequest(topics=sorted(names))
                self._take(await self.transport.metadata(request, elsewhere=elsewhere))
                self._failure = None
            except HeadraceError as error:
                self._failure = error
            self._took_ms = self._clock.monotonic_ms() - self._asked_ms
            self._resolve_doubts()
            done, self._round = self._round, asyncio.get_running_loop().create_future()
            if done is not None and not done.done():
                done.set_result(None)
            if self._on_change is not None:
                self._on_change()
            if not self._again and names >= set(self._wanted) and not self._doubts:
                return

    async def _pause(self) -> None:
        """Wait before the next asking; less when a doubt arises meanwhile."""
        while (wait_ms := self._wait_ms()) > 0:
            hurry = self._hurry = asyncio.get_running_loop().create_future()
            pause = self._tasks.start(self._clock.sleep_ms(wait_ms), "metadata: pause")
            await asyncio.wait({pause, hurry}, return_when=asyncio.FIRST_COMPLETED)
            self._hurry = None
            if pause.done():
                return
            pause.cancel()

    def _wait_ms(self) -> float:
        """Askings in a row are at least a backoff apart, which doubles; a pause as long as the longest resets it."""
        settings = self._settings
        now_ms = self._clock.monotonic_ms()
        since = now_ms - self._asked_ms
        if self._doubts and now_ms < self._urgent_until_ms:
            often = max(INTERVAL_MS_MIN, min(settings.retry_backoff_ms, URGENT_INTERVAL_MS))
            return max(0.0, max(often, 2 * self._took_ms) - since)  # who answers slowly is not asked more often
        if since > settings.retry_backoff_max_ms:
            self._streak = 0
            return 0
        wait = min(settings.retry_backoff_ms * 2.0 ** min(self._streak, 16), settings.retry_backoff_max_ms)
        self._streak += 1
        return max(0.0, wait - since)

    def _take(self, answer: pb.MetadataResponse) -> None:
        if self._newest.is_behind(answer):
            return
        if self._newest.is_another(answer):  # leader epochs of before may be above its own
            self._hints.clear()
            self._doubts.clear()
        self._newest.take(answer)
        self._learned_ms = self._clock.monotonic_ms()
        for topic in answer.topics:
            if topic.error:
                self._fail(topic.name, topic.error, topic.message)
                continue
            known = self._topics.get(topic.name)
            if known is not None and known.topic_id != topic.topic_id:
                for number in range(known.partitions):
                    self._hints.pop(TopicPartition(topic.name, number), None)
            leaders = tuple(Leader(NodeId(p.leader), p.leader_epoch) for p in topic.partitions)
            self._topics[topic.name] = TopicView(topic.name, topic.topic_id, leaders, topic.max_message_bytes)
            self._wanted[topic.name] = None
            for number, leader in enumerate(leaders):
                tp = TopicPartition(topic.name, number)
                if tp in self._hints and self._hints[tp].epoch <= leader.epoch:
                    del self._hints[tp]

    def _fail(self, name: str, code: int, message: str) -> None:
        text = message or "the cluster refused to describe it"
        if code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            self._topics.pop(name, None)
            self._wanted[name] = unknown_topic(name)
        else:
            self._wanted[name] = error_for(code, f"topic {name!r}: {text}")

    async def close(self) -> None:
        """Stop asking. The transport is closed by whoever opened it."""
        await self._tasks.close()


__all__ = ["NO_NODE", "ClusterClient", "Leader", "TopicView"]

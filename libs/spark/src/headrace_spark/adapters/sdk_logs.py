"""
What the driver asks of a cluster, through the SDK: which partitions there are, where their logs start and end, how
large records are; and the group as which a query is shown.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

from headrace import AdminClient, LogWatch
from headrace.errors import HeadraceError, UnknownTopicOrPartition
from headrace.finding import ClusterAddress
from headrace_common.core.ids import TopicPartition
from headrace_common.runtime.clock import SystemClock
from headrace_spark.adapters.clients import (
    CLIENTS_MAX,
    LOOK_AGAIN_MS,
    LOOKS_MAX,
    drop_client,
    pause,
    settings_key,
    share_client,
)
from headrace_spark.core.limits import Selection, check_there
from headrace_spark.core.offsets import Bound, OffsetRange, Snapshot

ADMIN_TIMEOUT_MS: Final = 3_000
"""What is only nice to have is not waited for any longer…"""
ADMIN_AGAIN_MS: Final = 30_000
"""…and after a failure not asked for again so soon."""
SIZES_MS: Final = 60_000
"""How long what was found out about sizes is used."""
SHOW_MS: Final = 1_000
"""Positions are shown at most so often."""

_ADMIN_SETTINGS: Final = frozenset({"client_id", "metadata_max_age_ms", "retry_backoff_ms", "retry_backoff_max_ms"})

_log = logging.getLogger("headrace.spark")
_not_before_ms: dict[Hashable, float] = {}
"""Until when an admin service that did not answer is left alone, by client; in this process."""


class SdkLogs:
    """``Logs`` over ``LogWatch``, with settings of the SDK's consumers."""

    def __init__(self, bootstrap_servers: ClusterAddress, settings: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap_servers
        self._settings = dict(settings)
        self._admin = _Admin(bootstrap_servers, settings)
        self._clock = SystemClock()
        self._sizes: Mapping[TopicPartition, int] = {}
        self._sizes_until_ms = float("-inf")

    def snapshot(
        self,
        selection: Selection,
        *,
        newer_than: Mapping[TopicPartition, int] | None = None,
        wait_ms: float = 0,
        after_ms: float = 0,
        must_exist: bool = False,
    ) -> Snapshot:
        pause(after_ms)
        for left in reversed(range(LOOKS_MAX)):
            try:
                return self._look(selection, newer_than or {}, wait_ms, must_exist=must_exist)
            except UnknownTopicOrPartition:
                if not left:
                    raise
            pause(LOOK_AGAIN_MS)
        raise AssertionError("the last look answers or raises")

    def _look(
        self, selection: Selection, newer_than: Mapping[TopicPartition, int], wait_ms: float, *, must_exist: bool
    ) -> Snapshot:
        watch = self._watch()
        topics = watch.topics()
        counts = {name: layout.partitions for name, layout in topics.items()}
        if must_exist:
            check_there(selection, counts)
        chosen = selection.choose(counts)
        if not chosen:
            pause(wait_ms)
            return Snapshot({}, {})
        known: dict[TopicPartition | tuple[str, int], int] = {tp: newer_than[tp] for tp in chosen if tp in newer_than}
        waits = wait_ms > 0 and len(known) == len(chosen)
        bounds = watch.bounds(chosen, newer_than=known, wait_ms=int(wait_ms)) if waits else watch.bounds(chosen)
        ids = {tp.topic: at.topic_id for tp, at in bounds.items()}
        # a log that is trimmed between two answers would seem to start behind its end
        return Snapshot({tp: Bound(at.start, max(at.start, at.end)) for tp, at in bounds.items()}, ids)

    def offsets_for_times(self, timestamps_ms: Mapping[TopicPartition, int]) -> dict[TopicPartition, int | None]:
        wanted: dict[TopicPartition | tuple[str, int], int] = dict(timestamps_ms.items())
        return self._watch().offsets_for_times(wanted) if wanted else {}

    def still_there(self, ranges: Sequence[OffsetRange], topic_ids: Mapping[str, str]) -> tuple[OffsetRange, ...]:
        topics = self._watch().topics()
        return tuple(
            each
            for each in ranges
            if (layout := topics.get(each.partition.topic)) is not None
            and each.partition.partition < layout.partitions
            and topic_ids.get(each.partition.topic, layout.topic_id) == layout.topic_id
        )

    def record_bytes(self, snapshot: Snapshot) -> Mapping[TopicPartition, int]:
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._sizes_until_ms:
            self._sizes_until_ms = now_ms + SIZES_MS
            self._sizes = self._find_sizes(snapshot)
        return self._sizes

    def _find_sizes(self, snapshot: Snapshot) -> Mapping[TopicPartition, int]:
        """Of the replicas' sizes on disk, so of compressed records."""
        names = {bytes.fromhex(topic_id): topic for topic, topic_id in snapshot.topic_ids.items()}
        found: dict[TopicPartition, int] = {}
        for broker in self._admin.ask(lambda admin: admin.describe_logs(topics=sorted(names.values()))) or []:
            for log in broker.logs:
                tp = TopicPartition(names.get(log.topic_id, ""), log.partition)
                count = log.log_end_offset - log.log_start_offset
                if tp in snapshot.bounds and count > 0:
                    found[tp] = max(found.get(tp, 1), log.size_bytes // count)
        return found

    def _watch(self) -> LogWatch:
        key = ("watch", self._bootstrap, settings_key(self._settings))
        return share_client(key, lambda: LogWatch(self._bootstrap, **self._settings))


class SdkOnlookers:
    """``Onlookers`` over the admin client: it sets a group's offsets without joining it, or reading anything."""

    def __init__(self, bootstrap_servers: ClusterAddress, settings: Mapping[str, Any]) -> None:
        self._admin = _Admin(bootstrap_servers, settings)
        self._clock = SystemClock()
        self._shown: dict[TopicPartition, int] = {}
        self._next_ms = 0.0

    def show(self, group: str, positions: Mapping[TopicPartition, int], *, last: bool = False) -> None:
        moved = {tp: offset for tp, offset in positions.items() if self._shown.get(tp) != offset}
        now_ms = self._clock.monotonic_ms()
        if not moved or (now_ms < self._next_ms and not last):
            return
        self._next_ms = now_ms + SHOW_MS
        offsets = {(tp.topic, tp.partition): offset for tp, offset in moved.items()}
        plan = self._admin.ask(lambda admin: admin.reset_offsets(group, to_offset=offsets, execute=True))
        if plan is not None:
            self._shown.update(moved)


class _Admin:
    """Asks the admin service for what may as well be missing."""

    def __init__(self, bootstrap_servers: ClusterAddress, settings: Mapping[str, Any]) -> None:
        self._bootstrap = bootstrap_servers
        self._settings: dict[str, Any] = {
            **{name: value for name, value in settings.items() if name in _ADMIN_SETTINGS},
            "default_api_timeout_ms": ADMIN_TIMEOUT_MS,
            "request_timeout_ms": ADMIN_TIMEOUT_MS,
        }
        self._clock = SystemClock()

    def ask(self, question: Any) -> Any:
        """The answer; None: there is none, which is logged."""
        key = ("admin", self._bootstrap, settings_key(self._settings))
        if self._clock.monotonic_ms() < _not_before_ms.get(key, 0.0):
            return None
        try:
            return question(share_client(key, lambda: AdminClient(self._bootstrap, **self._settings)))
        except HeadraceError as error:
            if len(_not_before_ms) >= CLIENTS_MAX:
                _not_before_ms.clear()
            _not_before_ms[key] = self._clock.monotonic_ms() + ADMIN_AGAIN_MS
            drop_client(key)
            _log.warning("not known or shown for now, which changes nothing in what is read: %s", error)
            return None

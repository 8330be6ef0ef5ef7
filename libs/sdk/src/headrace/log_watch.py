"""
``headrace.LogWatch``: which topics there are, and how far their logs reach, for programs that plan what to read.

The engine runs on the process's loop thread; this is its face for a thread that may block.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Unpack

from headrace._lifetime import Lifetime
from headrace.aio._consumer_setup import PartitionLike, check_offset, check_timestamp, open_transport, partitions_like
from headrace.aio._log_watching import LogBounds, LogWatching, TopicLayout
from headrace.consumer_settings import reading_settings
from headrace.errors import Rejected
from headrace.records import TopicPartition
from headrace_common.runtime.clock import SystemClock

if TYPE_CHECKING:
    from headrace._transport.port import Transport
    from headrace.setting_types import ReadingSettingsDict

WAIT_MS_MAX: Final = 300_000


class LogWatch(Lifetime):
    """
    Looks at topics and at the bounds of their logs; reads no records.

    Args:
        bootstrap_servers: any brokers, ``"host:port,host:port"`` or a list; else as ``headrace.finding`` says.
        settings: those of a consumer that are not about groups, resets or records: ``isolation_level`` decides what an
            end is, ``default_api_timeout_ms`` how long calls are repeated while brokers cannot answer.

    Making one connects to nothing yet. For one thread at a time. It belongs to the process that made it: a forked child
    makes its own.

    Raises:
        InvalidConfig: a setting is unknown or out of bounds; all of them are named.

    ::

        >>> import headrace
        >>> watch = headrace.LogWatch(isolation_level="read_committed")
        >>> watch.topics()["flights"].partitions
        1
        >>> first = headrace.TopicPartition("flights", 0)
        >>> watch.bounds([first])[first].start, watch.bounds([first])[first].end
        (0, 4)
        >>> watch.offsets_for_times({first: 1_700_000_002_000})
        {TopicPartition(topic='flights', partition=0): 2}

    ``bounds`` can wait for what is new, on the brokers, so that nothing is asked for in vain::

        >>> watch.bounds([first], newer_than={first: 4}, wait_ms=50)[first].end
        4
        >>> watch.close()
    """

    _KIND = "log watch"

    def __init__(
        self,
        bootstrap_servers: str | Sequence[str] | None = None,
        *,
        _transport: Transport | None = None,
        **settings: Unpack[ReadingSettingsDict],
    ) -> None:
        read = reading_settings(self._KIND, settings)
        addresses = read.find(bootstrap_servers)
        transport = open_transport(addresses, read, settings) if _transport is None else _transport
        self._watching = watching = LogWatching(transport, read, SystemClock())

        async def end() -> None:
            await watching.close()
            await transport.close()

        self._begin_life(end)

    def topics(self) -> dict[str, TopicLayout]:
        """
        All topics there are, internal ones too, as a broker knows them now.

        Raises:
            HeadraceError: no broker could say within ``default_api_timeout_ms``.
        """
        self._check_usable()
        return self._ask(self._watching.topics())

    def bounds(
        self,
        partitions: Iterable[PartitionLike],
        *,
        newer_than: Mapping[PartitionLike, int] | None = None,
        wait_ms: int = 0,
    ) -> dict[TopicPartition, LogBounds]:
        """
        Where the logs begin and end: of all partitions that were asked for, or none.

        Args:
            newer_than: ends that are known already. The call waits until one log ends above its own, or a partition is
                not among them; at most ``wait_ms`` (up to 300000).

        Raises:
            UnknownTopicOrPartition: one does not exist, and did not for three seconds.
            HeadraceError: a leader could not be asked within ``default_api_timeout_ms``; retriable.
        """
        self._check_usable()
        wanted = partitions_like(partitions)
        if not isinstance(wait_ms, int) or isinstance(wait_ms, bool) or not 0 <= wait_ms <= WAIT_MS_MAX:
            raise Rejected(f"wait_ms takes 0 to {WAIT_MS_MAX}, not {wait_ms!r}")
        seen = None
        if newer_than is not None:
            seen = {TopicPartition(*tp): check_offset(offset) for tp, offset in newer_than.items()}
        return self._ask(self._watching.bounds(list(dict.fromkeys(wanted)), seen, wait_ms))

    def offsets_for_times(self, timestamps: Mapping[PartitionLike, int]) -> dict[TopicPartition, int | None]:
        """
        For each partition the first offset at or after a time, in ms since the epoch; None: no record is that young.

        Raises:
            As ``bounds``.
        """
        self._check_usable()
        wanted = {TopicPartition(*tp): check_timestamp(time) for tp, time in timestamps.items()}
        found = self._ask(self._watching.at_times(wanted))
        return {tp: found[tp].offset if found[tp].offset >= 0 else None for tp in wanted}

    def __repr__(self) -> str:
        return "<headrace.LogWatch: closed>" if self._closed or self._abandoned else "<headrace.LogWatch>"


__all__ = ["LogBounds", "LogWatch", "TopicLayout"]

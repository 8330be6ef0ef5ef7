"""
The sink ``http-sink``: records as requests, one after the other, each with a key that is the same when it is repeated.

What a target has taken is known until the partition is given up, so that a failure behind it repeats nothing. What a
restart repeats is the target's affair: it knows the keys, or takes the records again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

from headrace.records import TopicPartition
from headrace_common.runtime.clock import SystemClock
from headrace_common.runtime.traceparent import HEADER as TRACE
from headrace_common.runtime.traceparent import current
from headrace_connect.connectors.http.addresses import show_url
from headrace_connect.connectors.http.answers import Verdict, judge, reason_of, retry_after_ms
from headrace_connect.connectors.http.batches import Item, body_of, cut, encode, key_of
from headrace_connect.connectors.http.client import HttpClient
from headrace_connect.connectors.http.sink_settings import SinkSettings
from headrace_connect.plugin import Guarantee, RetriableError, Rows, RowsRefused, Sink

if TYPE_CHECKING:
    import httpx

_ANSWER_BYTES_MAX: Final = 64 << 10
"""Of an answer so much is read, so that its connection can be used again."""
UNPROVED_MAX: Final = 100
"""So many records are refused alone before it is the target that is wrong, if it has never taken one."""
_RIGHTS: Final = frozenset({401, 403, 404, 407})


@dataclass(frozen=True, slots=True)
class _Stream:
    """Records of one partition that go to one place, in the order of their offsets."""

    partition: TopicPartition
    topic: str
    """As a transform has named it."""


class HttpSink(Sink[SinkSettings]):
    """Sends records to an HTTP endpoint, in batches or one by one."""

    now_ms: Callable[[], int] = staticmethod(SystemClock().now_ms)
    transport: ClassVar[httpx.AsyncBaseTransport | None] = None
    """What is asked instead of the network; for tests."""

    def __init__(self, settings: SinkSettings) -> None:
        super().__init__(settings)
        if settings.idempotency != "none":
            self.guarantee = Guarantee.IDEMPOTENT
        self._has_content_type = any(name.lower() == "content-type" for name in settings.headers)
        self._client: HttpClient | None = None
        self._epochs: dict[TopicPartition, int] = {}
        self._taken: dict[_Stream, int] = {}
        """Of open partitions: records below this offset were taken, or are known to be bad."""
        self._proved = False
        """Whether the target has ever taken anything."""
        self._unproved = 0

    async def check(self) -> Sequence[str]:
        """See ``Connector``; asks the target with a method that changes nothing."""
        settings = self.settings
        url = settings.url_of("topic")
        method = "OPTIONS" if settings.check_method == "none" else settings.check_method
        client = HttpClient(self.settings, self.transport)
        try:
            answer = await client.send(method, url, bytes_max=_ANSWER_BYTES_MAX)
        except RetriableError as error:
            return [f"url: {error}; check the address, and tls.ca where it is https"]
        finally:
            await client.close()
        if settings.check_method != "none" and (answer.status in _RIGHTS or 300 <= answer.status < 400):
            what = f"url: {show_url(url)} answers {method} with {reason_of(answer.status, answer.body)}"
            return [f"{what}; set check.method if only {settings.method} is answered there"]
        return []

    async def start(self) -> None:
        """See ``Connector``."""
        self._client = HttpClient(self.settings, self.transport)

    async def stop(self) -> None:
        """See ``Connector``."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def open(self, partitions: Sequence[TopicPartition], epoch: int) -> Mapping[TopicPartition, int]:
        """See ``Sink``; what was taken stays taken, so it is not sent again."""
        self._forget([partition for partition in partitions if self._epochs.get(partition) != epoch])
        self._epochs |= dict.fromkeys(partitions, epoch)
        return {}

    async def write(self, rows: Rows) -> None:
        """See ``Sink``; the target has taken the rows when this returns."""
        stream = _Stream(rows.source, rows.topic)
        offsets: list[Any] = rows.offsets.to_pylist()
        first = bisect_left(offsets, self._taken.get(stream, 0))
        left = rows.slice(first)
        encoded = encode(left, self.settings)
        refused = dict(encoded.refused)
        for items in () if refused else cut(encoded.items, self.settings):
            try:
                await self._deliver(stream, left, items, refused)
            except RetriableError:
                if not refused or self._is_unproved:
                    raise
                break  # what is bad is told first; the others are written again
        if refused:
            raise RowsRefused({first + index: reason for index, reason in refused.items()})

    async def commit(self, positions: Mapping[TopicPartition, int], token: bytes | None) -> None:
        """See ``Sink``; all of it was taken when it was written."""

    async def close(self, partitions: Sequence[TopicPartition]) -> None:
        """See ``Sink``."""
        self._forget(partitions)
        for partition in partitions:
            self._epochs.pop(partition, None)

    async def _deliver(self, stream: _Stream, rows: Rows, items: Sequence[Item], refused: dict[int, str]) -> None:
        """
        Send these, in halves where they are refused, until what is bad is alone; it comes into ``refused``.

        Raises:
            RetriableError: not now. What was sent before is not sent again.
        """
        before = self._taken.get(stream, 0)
        left = [items]
        while left:
            some = left.pop()
            reason = await self._send(rows, some)
            if reason is not None and len(some) > 1:
                half = len(some) // 2
                left += [some[half:], some[:half]]
                continue
            if reason is None:
                self._proved = True
            else:
                refused[some[0].index] = reason
                self._unproved += not self._proved
                if self._is_unproved:
                    self._taken[stream] = before
                    raise RetriableError(
                        f"{show_url(self.settings.url)} has refused {self._unproved} records, each alone, and taken "
                        f"none, so it may be the target or the settings that are wrong: {reason}"
                    )
            self._taken[stream] = some[-1].offset + 1

    @property
    def _is_unproved(self) -> bool:
        return not self._proved and self._unproved >= UNPROVED_MAX

    async def _send(self, rows: Rows, items: Sequence[Item]) -> str | None:
        """Why these are refused; None: they are taken."""
        settings = self.settings
        assert self._client is not None, "start comes first"
        url = settings.url_of(rows.topic)
        body, content_type = body_of(items, settings.format)
        headers = {} if self._has_content_type else {"content-type": content_type}
        if settings.idempotency_header:
            headers[settings.idempotency_header] = key_of(rows, items, settings.idempotency_prefix)
        parent = current()
        if parent is not None:
            headers[TRACE] = str(parent)
        answer = await self._client.send(settings.method, url, body, headers, bytes_max=_ANSWER_BYTES_MAX)
        verdict = judge(answer.status)
        if verdict is Verdict.TAKEN:
            return None
        reason = reason_of(answer.status, answer.body)
        if verdict is Verdict.REFUSED:
            return reason
        after_ms = retry_after_ms(answer.headers.get("retry-after"), self.now_ms())
        raise RetriableError(f"{show_url(url)} answers with {reason}", after_ms=after_ms)

    def _forget(self, partitions: Sequence[TopicPartition]) -> None:
        gone = set(partitions)
        self._taken = {stream: end for stream, end in self._taken.items() if stream.partition not in gone}

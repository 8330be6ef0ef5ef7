"""The source ``http-poll-source``: asks a URL again and again, and goes on where the last answer said."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar

from headrace_common.runtime.clock import SystemClock, pause_ms
from headrace_connect.connectors.http.addresses import show_url
from headrace_connect.connectors.http.answers import Verdict, judge, reason_of, retry_after_ms
from headrace_connect.connectors.http.client import HttpClient
from headrace_connect.connectors.http.pages import BadAnswer, Page, Place, read_page, request_of
from headrace_connect.connectors.http.poll_settings import PollSettings
from headrace_connect.plugin import Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Problem, invalid

if TYPE_CHECKING:
    import httpx

_NOT_MODIFIED = 304


class HttpPollSource(Source[PollSettings]):
    """Records of an HTTP endpoint that is polled."""

    transport: ClassVar[httpx.AsyncBaseTransport | None] = None
    """What is asked instead of the network; for tests."""
    now_ms: Callable[[], int] = staticmethod(SystemClock().now_ms)
    sleep_ms: Callable[[float], Awaitable[None]] = staticmethod(pause_ms)

    def __init__(self, settings: PollSettings) -> None:
        super().__init__(settings)
        self._client: HttpClient | None = None

    async def check(self) -> Sequence[str]:
        """See ``Connector``; asks once, for the first page."""
        self._client = HttpClient(self.settings, self.transport)
        try:
            await self._ask(Place())
        except RetriableError as error:
            return [f"url: {error}"]
        finally:
            await self.stop()
        return []

    async def start(self) -> None:
        """See ``Connector``."""
        self._client = HttpClient(self.settings, self.transport)

    async def stop(self) -> None:
        """See ``Connector``."""
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def splits(self) -> Sequence[Split]:
        """One: each page says where the next one is."""
        return (Split("url"),)

    async def read(self, split: Split, after: Position | None) -> AsyncIterator[Chunk]:
        """
        See ``Source``.

        Raises:
            InvalidConfig: an answer is too large, or ``after`` is no position of a polled URL.
            RetriableError: the server is away, or does not answer as the settings say.
        """
        try:
            place = Place.from_json(after)
        except ValueError as wrong:
            raise invalid([Problem("", f"{wrong}; delete the connector's offsets")]) from wrong
        while True:
            page = await self._ask(place)
            place = page.place
            yield Chunk(page.records, place.to_json(), drained=not page.more)
            if not page.more:
                await self.sleep_ms(self.settings.interval_ms)

    async def _ask(self, place: Place) -> Page:
        settings = self.settings
        assert self._client is not None, "start comes first"
        url, headers = request_of(settings, place)
        answer = await self._client.send("GET", url, headers=headers, bytes_max=settings.answer_bytes_max)
        if answer.status == _NOT_MODIFIED:
            return Page((), place, False)
        if judge(answer.status) is not Verdict.TAKEN:
            after_ms = retry_after_ms(answer.headers.get("retry-after"), self.now_ms())
            reason = reason_of(answer.status, answer.body)
            raise RetriableError(f"{show_url(url)} answers with {reason}", after_ms=after_ms)
        if not answer.whole:
            message = f"{show_url(url)} answers with more than {settings.answer_bytes_max} bytes; ask for smaller pages"
            raise invalid([Problem("answer.bytes.max", f"answer.bytes.max: {message}")])
        try:
            return read_page(settings, place, url, answer)
        except BadAnswer as error:
            raise RetriableError(f"{show_url(url)}: {error}") from error

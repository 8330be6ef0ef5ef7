"""``http-poll-source``: each record once, wherever it is stopped; pages, cursors, conditions, and waits."""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.http import HttpPollSource
from headrace_connect.connectors.http.poll_settings import PollSettings
from headrace_connect.plugin import Chunk, Position, RetriableError, Source, Split
from headrace_connect.settings import Secret
from headrace_connect.testing import SourceCase, check_source

URL = "http://api.test/items?size=3"
SPLIT = Split("url")
Answers = Callable[[httpx.Request], httpx.Response]


@dataclass
class Polling:
    """A source that asks ``answers`` instead of the network; one instance after another."""

    answers: Answers
    values: dict[str, Any] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)
    slept: list[float] = field(default_factory=list)
    rows: list[Any] = field(default_factory=list)
    position: Position | None = None

    def make(self) -> HttpPollSource:
        def handle(request: httpx.Request) -> httpx.Response:
            self.asked.append(request)
            return self.answers(request)

        async def sleep(ms: float) -> None:
            self.slept.append(ms)

        own = {
            "transport": httpx.MockTransport(handle),
            "sleep_ms": staticmethod(sleep),
            "now_ms": staticmethod(lambda: 0),
        }
        return type("Polled", (HttpPollSource,), own)(PollSettings(**{"url": URL} | self.values))  # type: ignore[no-any-return]

    async def read(self, rounds: int = 1) -> list[Any]:
        """The records of so many rounds, from the position on."""
        source, rows = self.make(), list[Any]()
        await source.start()
        chunks = source.read(SPLIT, self.position)
        try:
            while rounds:
                chunk: Chunk = await anext(chunks)
                rows += list(chunk.rows)
                self.position = json.loads(json.dumps(dict(chunk.position)))
                rounds -= chunk.drained
        finally:
            await chunks.aclose()  # type: ignore[attr-defined]
            await source.stop()
        return rows

    @property
    def queries(self) -> list[dict[str, str]]:
        return [dict(request.url.params) for request in self.asked]


def reply(value: Any, **headers: str) -> httpx.Response:
    return httpx.Response(200, json=value, headers={name.replace("_", "-"): text for name, text in headers.items()})


async def test_one_answer_is_asked_for_again_only_if_it_has_changed() -> None:
    state = {"etag": '"1"', "rows": [{"n": 1}, {"n": 2}]}

    def answers(request: httpx.Request) -> httpx.Response:
        if request.headers.get("if-none-match") == state["etag"]:
            return httpx.Response(304)
        return reply(state["rows"], etag=str(state["etag"]), last_modified="Thu, 01 Jan 1970 00:01:00 GMT")

    polling = Polling(answers, {"interval_ms": 77, "authorization": Secret("Bearer x"), "headers": {"X-A": "b"}})
    assert await polling.read(3) == [{"n": 1}, {"n": 2}]
    assert polling.slept == [77, 77]
    assert await polling.read() == []
    state |= {"etag": '"2"', "rows": {"n": 3}}
    assert await polling.read() == [{"n": 3}]
    sent = polling.asked[1].headers
    assert (sent["authorization"], sent["x-a"], sent["if-modified-since"]) == (
        "Bearer x",
        "b",
        "Thu, 01 Jan 1970 00:01:00 GMT",
    )
    assert "if-none-match" not in polling.asked[0].headers


async def test_pages_of_links_and_what_is_new_since() -> None:
    rows = [{"id": n, "at": f"2026-01-0{n}"} for n in range(1, 6)]

    def answers(request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        later = [row for row in rows if str(row["at"]) > query.get("since", "")]
        start = int(query.get("from", 0))
        page = f"/items?size=3&since={query.get('since', '')}&from={start + 2}"
        link = f'</x?q="a,b">; rel="prev", <{page}>; rel="last next"'
        return reply(
            {"data": {"items": later[start : start + 2]}}, **({"link": link} if start + 2 < len(later) else {})
        )

    polling = Polling(answers, {"paging": "link", "records_field": "data.items", "since_field": "at"})
    assert await polling.read() == rows
    assert polling.position == {"since": "2026-01-05"}
    rows.append({"id": 6, "at": "2026-01-06"})
    assert await polling.read(2) == rows[5:]
    assert polling.queries[-1] == {"size": "3", "since": "2026-01-06"}


async def test_a_cursor_that_goes_on_for_good() -> None:
    rows = list(range(5))

    def answers(request: httpx.Request) -> httpx.Response:
        start = int(request.url.params.get("after", 0))
        page = rows[start : start + 2]
        return reply({"items": page, "meta": {"next": start + len(page)}})

    values = {"paging": "cursor", "records_field": "items", "next_field": "meta.next", "cursor_param": "after"}
    polling = Polling(answers, values)
    assert await polling.read() == rows
    assert polling.position == {"cursor": 5}
    rows += [5, 6, 7]
    assert await polling.read() == [5, 6, 7]


async def test_a_cursor_that_ends_begins_a_round_with_what_is_later() -> None:
    def answers(request: httpx.Request) -> httpx.Response:
        query = dict(request.url.params)
        items = [n for n in range(1, 6) if n > int(query.get("min", 0))]
        start = int(query.get("c", 0))
        return reply(
            {"items": [{"n": n} for n in items[start : start + 2]], "c": start + 2 if start + 2 < len(items) else None}
        )

    values = {
        "paging": "cursor",
        "records_field": "items",
        "next_field": "c",
        "cursor_param": "c",
        "since_field": "n",
        "since_param": "min",
    }
    polling = Polling(answers, values)
    assert [row["n"] for row in await polling.read(2)] == [1, 2, 3, 4, 5]
    assert [query.get("min") for query in polling.queries] == [None, None, None, "5"]
    assert [query.get("c") for query in polling.queries] == [None, "2", "4", None]


async def test_a_cursor_of_any_size() -> None:
    def answers(request: httpx.Request) -> httpx.Response:
        return reply({"items": [1] if "after" not in request.url.params else [], "c": 10**25})

    values = {"paging": "cursor", "records_field": "items", "next_field": "c", "cursor_param": "after"}
    polling = Polling(answers, values)
    assert await polling.read() == [1]
    assert polling.position == {"cursor": str(10**25)}, "positions have numbers of 64 bits"
    assert polling.queries[-1]["after"] == str(10**25)


async def test_a_cursor_that_stands_still_sends_no_page_twice() -> None:
    page = {"items": [1, 2], "c": "x"}
    values = {"paging": "cursor", "records_field": "items", "next_field": "c"}
    polling = Polling(lambda _: reply(page), values)
    with pytest.raises(RetriableError, match="the cursor is 'x' again"):
        await polling.read()
    assert polling.position == {"cursor": "x"}
    page["items"] = []
    assert await polling.read() == [], "it may stand still where there is nothing more"


async def test_lines_and_nothing() -> None:
    polling = Polling(lambda _: httpx.Response(200, content=b'{"n":1}\n\n{"n":2}\r\n'), {"format": "ndjson"})
    assert await polling.read() == [{"n": 1}, {"n": 2}]
    assert await Polling(lambda _: httpx.Response(204), {"records_field": "x"}).read() == []


@pytest.mark.parametrize(
    ("answer", "values", "error"),
    [
        (httpx.Response(503, headers={"retry-after": "9"}), {}, "status 503"),
        (httpx.Response(403), {}, "check authorization"),
        (httpx.Response(400, text="what?"), {}, "what?"),
        (httpx.Response(302), {}, "redirects"),
        (httpx.Response(200, text="<html>"), {}, "not JSON"),
        (httpx.Response(200, text="[NaN]"), {}, "NaN"),
        (httpx.Response(200, content=b'"\xff"'), {}, "not JSON"),
        (reply([None]), {}, "null"),
        (reply({"items": []}), {"records_field": "data"}, "no data; records.field is wrong, or it is another: items"),
        (reply([{"n": None}]), {"since_field": "n"}, "has no n"),
        (reply([{"n": 1}, {"n": "x"}]), {"since_field": "n"}, "a text in one"),
        (reply({"c": {"x": 1}}), {"paging": "cursor", "next_field": "c"}, "c is no text and no number"),
        (reply({"c": [1]}), {"paging": "link", "next_field": "c"}, "next.field is wrong"),
        (reply([{"n": 10**25}]), {"since_field": "n", "since_param": "min"}, "n that is a text or a number of 64 bits"),
        (reply([], link='<http://evil.test/>; rel="next"'), {"paging": "link"}, "on another server"),
        (reply([], link="<https://api.test/items>; rel=next"), {"paging": "link"}, "on another server"),
        (reply([], link=f"<{URL}>; rel=next"), {"paging": "link"}, "the page itself"),
        (reply([], link=f"</{'x' * 3_000}>; rel=next"), {"paging": "link"}, "too long"),
    ],
)
async def test_answers_that_are_asked_for_again(answer: httpx.Response, values: dict[str, Any], error: str) -> None:
    polling = Polling(lambda _: answer, values)
    with pytest.raises(RetriableError, match=error) as later:
        await polling.read()
    assert later.value.after_ms == (9_000 if answer.status_code == 503 else 0)
    assert error.partition(";")[0] in (await polling.make().check())[0]


async def test_an_answer_without_an_end_is_not_read() -> None:
    polling = Polling(lambda _: reply("x" * 5_000), {"answer_bytes_max": 1_024})
    with pytest.raises(InvalidConfig, match="more than 1024 bytes"):
        await polling.read()


async def test_check_is_content_with_what_can_be_read() -> None:
    assert await Polling(lambda _: reply([])).make().check() == []


@pytest.mark.parametrize("position", [{"x": 1}, {"cursor": True}, {"page": 5}, {"since": []}])
async def test_offsets_that_somebody_wrote_by_hand(position: Position) -> None:
    polling = Polling(lambda _: reply([]), position=position)
    with pytest.raises(InvalidConfig, match="delete the connector's offsets"):
        await polling.read()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"url": "x"}, "url is http"),
        ({"paging": "cursor"}, "needs next.field"),
        ({"next_field": "a"}, "not used with paging=none"),
        ({"since_field": "a", "since_param": ""}, "needs since.param"),
        ({"format": "ndjson", "records_field": "a"}, "a record in each line"),
        ({"authorization": Secret("a\r\nb: c")}, "authorization has"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        PollSettings(**{"url": URL} | values)


class PolledCase(SourceCase):
    """Pages of three, by a cursor or by links."""

    rows = 13
    is_away = False

    def go_away(self) -> bool:
        self.is_away = True
        return True

    def come_back(self) -> None:
        self.is_away = False

    def __init__(self, paging: str) -> None:
        self.values: dict[str, Any] = {"paging": paging, "records_field": "items"}
        if paging == "cursor":
            self.values["next_field"] = "next"
        else:
            self.values |= {"next_field": "more", "since_field": "n"}

    def answer(self, request: httpx.Request) -> httpx.Response:
        if self.is_away:
            raise httpx.ConnectError("nobody is there")
        query = dict(request.url.params)
        start = int(query.get("cursor", 0))
        since = int(query.get("since", -1))
        items = [{"n": n} for n in range(self.rows) if n > since][start : start + 3]
        value: dict[str, Any] = {"items": items, "next": start + len(items)}
        if items:
            value["more"] = f"/items?since={since}&cursor={start + 3}"
        return reply(value)

    def make(self) -> Source[Any]:
        return Polling(self.answer, self.values).make()

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert value is not None
        return int(json.loads(value)["n"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("paging", ["cursor", "link"])
def test_the_suite(paging: str) -> None:
    check_source(lambda: PolledCase(paging))

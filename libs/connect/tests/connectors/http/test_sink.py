"""``http-sink``: each record is taken once where the target knows keys, and none is missing; answers by their class."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pyarrow as pa
import pytest
from libs.connect.tests.connectors.http.target import URL, Target, sink_on
from libs.connect.tests.connectors.sql_sink.records import P0, P1, TOPIC, rows
from opentelemetry.sdk.trace import TracerProvider

from headrace_common.runtime.clock import SystemClock
from headrace_connect.connectors.http import HttpPollSource, HttpSink
from headrace_connect.connectors.http.answers import Verdict, judge, reason_of, retry_after_ms
from headrace_connect.connectors.http.poll_settings import PollSettings
from headrace_connect.connectors.http.sink import UNPROVED_MAX
from headrace_connect.connectors.http.sink_settings import SinkSettings
from headrace_connect.core.sink_commit import SinkRules
from headrace_connect.core.sink_steps import Open
from headrace_connect.plugin import Guarantee, RetriableError, RowsRefused, Sink
from headrace_connect.runtime.sink_task import SinkOutside, SinkTask, SinkTaskSettings
from headrace_connect.runtime.source_task import SourceOutside, SourceTask, SourceTaskSettings
from headrace_connect.settings import Secret
from headrace_connect.testing import SinkCase, check_sink
from headrace_connect.testing.group import MemoryGroup, MemoryTopic
from headrace_connect.testing.memory import (
    JsonPipeline,
    MemoryLog,
    MemorySourceLog,
    NoSteps,
    RawPipeline,
)


@asynccontextmanager
async def started(target: Target, **values: Any) -> AsyncIterator[HttpSink]:
    sink = sink_on(target, **values)
    await sink.start()
    try:
        await sink.open([P0, P1], 1)
        yield sink
    finally:
        await sink.stop()


def numbers(start: int, end: int) -> list[dict[str, int]]:
    return [{"n": n} for n in range(start, end)]


@pytest.mark.parametrize(
    ("format_", "body", "content_type"),
    [
        ("json", b'[{"n":5,"t":"\xc3\xa9"},{"n":6,"t":null}]', "application/json"),
        ("ndjson", b'{"n":5,"t":"\xc3\xa9"}\n{"n":6,"t":null}\n', "application/x-ndjson"),
        ("single", b'{"n":5,"t":"\xc3\xa9"}', "application/json"),
    ],
)
async def test_what_a_request_has(format_: str, body: bytes, content_type: str) -> None:
    target = Target()
    secret = Secret("Bearer x")
    async with started(target, format=format_, authorization=secret, headers={"X-Tenant": "a"}) as sink:
        await sink.write(rows([{"n": 5, "t": "é"}, {"n": 6, "t": None}], start=40))
    request = target.requests[0]
    assert (request.method, str(request.url), request.content) == ("POST", URL, body)
    assert request.headers["content-type"] == content_type
    assert (request.headers["authorization"], request.headers["x-tenant"]) == ("Bearer x", "a")
    assert target.keys == ([f"{TOPIC}.0.40", f"{TOPIC}.0.41"] if format_ == "single" else [f"{TOPIC}.0.40-41"])


async def test_a_request_carries_the_trace_that_it_is_in() -> None:
    target = Target()
    tracer = TracerProvider(shutdown_on_exit=False).get_tracer("test")
    async with started(target) as sink:
        with tracer.start_as_current_span("process") as span:
            await sink.write(rows(numbers(0, 1)))
        await sink.write(rows(numbers(1, 2), start=1))
    traced, plain = target.requests
    context = span.get_span_context()
    assert traced.headers["traceparent"] == f"00-{context.trace_id:032x}-{context.span_id:016x}-01"
    assert "traceparent" not in plain.headers


async def test_an_envelope_has_all_of_a_record() -> None:
    target = Target()
    async with started(target, record="envelope", url="http://target.test/${topic}", idempotency_prefix="a/") as sink:
        await sink.write(rows([{"n": 5}], keys=[b"\xff"], start=3, partition=P1))
    (request,) = target.requests
    assert request.url.path == f"/{TOPIC}"
    assert request.headers["idempotency-key"] == f"a/{TOPIC}.1.3"
    assert json.loads(request.content) == [
        {
            "id": f"a/{TOPIC}.1.3",
            "topic": TOPIC,
            "partition": 1,
            "offset": 3,
            "timestamp": 0,
            "key": "/w==",
            "value": {"n": 5},
            "headers": [],
        }
    ]


@pytest.mark.parametrize(("value", "kind"), [(b"\x00\xff", "application/octet-stream"), ("é", "text/plain")])
async def test_a_single_text_or_bytes_is_the_body(value: Any, kind: str) -> None:
    taken: list[httpx.Request] = []
    sink = sink_on(lambda request: taken.append(request) or httpx.Response(200), format="single")  # type: ignore[func-returns-value]
    await sink.start()
    await sink.open([P0], 1)
    await sink.write(rows([value]))
    await sink.stop()
    assert taken[0].content == (value if isinstance(value, bytes) else value.encode())
    assert taken[0].headers["content-type"].startswith(kind)


async def test_requests_are_cut_by_records_and_by_bytes() -> None:
    target = Target()
    async with started(target, batch_records=4, batch_bytes=1_024) as sink:
        await sink.write(rows(numbers(0, 10)))
        await sink.write(rows([{"n": n, "t": "x" * 400} for n in range(10, 13)], start=10))
        await sink.write(rows([{"n": 13, "t": "x" * 4_000}], start=13))
    offsets = [key.rpartition(".")[2] for key in target.keys]
    assert offsets == ["0-3", "4-7", "8-9", "10-11", "12", "13"]
    assert all(len(one.content) <= 1_024 for one in target.requests[:-1])
    assert target.stored == list(range(14))


@pytest.mark.parametrize(
    "reply", [*(httpx.Response(code) for code in (408, 425, 429, 500, 503, 401, 404, 302)), httpx.ReadTimeout("")]
)
async def test_what_is_tried_again_has_the_same_key_and_repeats_nothing(reply: Any) -> None:
    target = Target()
    async with started(target, batch_records=2) as sink:
        target.after = [httpx.Response(200)]
        target.replies = []
        await sink.write(rows(numbers(0, 2)))
        target.replies = [reply]
        with pytest.raises(RetriableError):
            await sink.write(rows(numbers(0, 5)))  # as the runtime does: the whole group comes again
        await sink.open([P0, P1], 1)
        await sink.write(rows(numbers(0, 5)))
    assert [key.rpartition(".")[2] for key in target.keys] == ["0-1", "2-3", "2-3", "4"]
    assert target.stored == list(range(5))


async def test_another_holder_knows_nothing_of_what_was_taken() -> None:
    target = Target()
    async with started(target) as sink:
        await sink.write(rows(numbers(0, 2)))
        await sink.close([P0])
        await sink.open([P0], 1)
        await sink.write(rows(numbers(0, 2)))
        await sink.open([P0], 2)
        await sink.write(rows(numbers(0, 2)))
        await sink.open([P0], 2)
        await sink.write(rows(numbers(0, 2)))
    assert target.stored == [0, 1] * 3


async def test_records_that_a_transform_sends_elsewhere_are_counted_apart() -> None:
    target = Target()
    async with started(target) as sink:
        one = rows(numbers(0, 4))
        for topic, places in (("a", [0, 2]), ("b", [1, 3])):
            mask = pa.array([place in places for place in range(4)])
            arrays = (one.values, one.keys, one.offsets, one.timestamps_ms, one.headers)
            await sink.write(type(one)(topic, 0, *(array.filter(mask) for array in arrays), TOPIC))
    assert sorted(target.stored) == [0, 1, 2, 3]


async def test_the_bad_records_of_a_batch_are_found_and_the_others_taken_once() -> None:
    target = Target(bad=frozenset({3, 4, 9}))
    async with started(target, batch_records=8) as sink:
        with pytest.raises(RowsRefused) as refused:
            await sink.write(rows(numbers(0, 12), start=100))
        assert sorted(refused.value.reasons) == [3, 4, 9]
        assert "422: a bad number" in refused.value.reasons[3]
        await sink.open([P0], 1)
        good = rows(numbers(0, 12), start=100)
        mask = pa.array([n not in target.bad for n in range(12)])
        arrays = (good.values, good.keys, good.offsets, good.timestamps_ms, good.headers)
        count = len(target.requests)
        await sink.write(type(good)(TOPIC, 0, *(array.filter(mask) for array in arrays)))
        assert len(target.requests) == count, "nothing is sent again"
    assert target.stored == [n for n in range(12) if n not in target.bad]


async def test_bad_records_are_told_before_the_target_is_waited_for() -> None:
    target = Target(bad=frozenset({1}))
    async with started(target, batch_records=2) as sink:
        await sink.write(rows(numbers(9, 10), partition=P1))
        target.replies = [httpx.Response(422), httpx.Response(201), httpx.Response(422), httpx.Response(503)]
        with pytest.raises(RowsRefused) as refused:
            await sink.write(rows(numbers(0, 6)))
        assert list(refused.value.reasons) == [1]
        await sink.open([P0], 1)
        await sink.write(rows(numbers(2, 6), start=2))
    assert target.stored == [9, 2, 3, 4, 5]


async def test_a_target_that_takes_nothing_makes_no_dead_letters_for_ever() -> None:
    target = Target(bad=frozenset(range(10_000)))
    async with started(target, batch_records=1_000) as sink:
        for _ in range(2):
            with pytest.raises(RetriableError, match="taken none"):
                await sink.write(rows(numbers(0, 1_000)))
        assert len(target.requests) < 4 * UNPROVED_MAX
        target.bad = frozenset({7})
        with pytest.raises(RowsRefused) as refused:
            await sink.write(rows(numbers(0, 1_000)))
        assert list(refused.value.reasons) == [7]
    assert target.stored == [n for n in range(1_000) if n != 7]


@pytest.mark.parametrize(("null_values", "stored"), [("skip", b"[1]"), ("send", b"[1,null]")])
async def test_records_without_a_value(null_values: str, stored: bytes) -> None:
    sent: list[bytes] = []
    sink = sink_on(lambda request: sent.append(request.content) or httpx.Response(200), null_values=null_values)  # type: ignore[func-returns-value]
    await sink.start()
    await sink.open([P0], 1)
    await sink.write(rows([1, None]))
    await sink.stop()
    assert sent == [stored]


async def test_records_that_have_no_form_are_refused_before_anything_is_sent() -> None:
    target = Target()
    async with started(target) as sink:
        with pytest.raises(RowsRefused) as refused:
            await sink.write(rows([{"n": 1.0}, None, {"n": float("nan")}]))
    assert list(refused.value.reasons) == [1, 2]
    assert target.requests == []


async def test_how_long_to_wait_is_what_the_target_says() -> None:
    target = Target(replies=[httpx.Response(503, headers={"retry-after": "7"})])
    async with started(target) as sink:
        with pytest.raises(RetriableError) as later:
            await sink.write(rows(numbers(0, 1)))
    assert later.value.after_ms == 7_000


def test_the_runtime_hears_how_long_to_wait() -> None:
    sink = sink_on(Target())
    outside = SinkOutside(MemoryGroup(MemoryTopic.of([])), JsonPipeline(), None, SystemClock(), NoSteps())
    task = SinkTask(sink, outside, SinkTaskSettings("case", 0, SinkRules(keeps_positions=False)))
    assert task._failed(Open({}), RetriableError("busy", after_ms=7_000)).after_ms == 7_000
    source = SourceTask(
        HttpPollSource(PollSettings(URL)),
        [],
        SourceOutside(MemorySourceLog(MemoryLog()), RawPipeline(), SystemClock(), NoSteps()),
        SourceTaskSettings(),
    )
    assert source._read_failed("url", RetriableError("busy", after_ms=7_000)).after_ms == 7_000


@pytest.mark.parametrize(
    ("value", "wait_ms"),
    [
        (None, 0),
        ("", 0),
        ("120", 120_000),
        ("-1", 0),
        ("soon", 0),
        ("²", 0),
        ("9" * 400, 999_999_999_000),
        ("Thu, 01 Jan 1970 00:01:00 GMT", 30_000),
        ("Thu, 01 Jan 1970 00:00:10 GMT", 0),
    ],
)
def test_retry_after(value: str | None, wait_ms: float) -> None:
    assert retry_after_ms(value, 30_000) == wait_ms


def test_each_status_has_its_verdict() -> None:
    later = {401, 403, 404, 405, 407, 408, 410, 425, 429}
    for status in range(100, 600):
        if 200 <= status < 300:
            assert judge(status) is Verdict.TAKEN
        elif 400 <= status < 500 and status not in later:
            assert judge(status) is Verdict.REFUSED
        else:
            assert judge(status) is Verdict.LATER
    assert reason_of(404, b"no\nsuch  thing") == "status 404; check url: no such thing"
    assert len(reason_of(500, b"x" * 10_000)) < 400


@pytest.mark.parametrize(
    ("reply", "problem"),
    [
        (httpx.Response(204), None),
        (httpx.Response(405), None),
        (httpx.Response(401), "check authorization"),
        (httpx.Response(404), "check url"),
        (httpx.Response(301), "redirects"),
        (httpx.ConnectError("no route"), "no route"),
    ],
)
async def test_check_asks_without_changing_anything(reply: Any, problem: str | None) -> None:
    target = Target(replies=[reply])
    problems = await sink_on(target, url=f"{URL}?token=hidden").check()
    assert target.requests[0].method == "OPTIONS"
    if problem is None:
        assert problems == []
    else:
        assert problem in problems[0]
        assert "hidden" not in problems[0]


async def test_a_slow_target_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    class Never(httpx.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            await asyncio.Event().wait()
            raise AssertionError

    sink = sink_on(Target(), timeout_ms=100)
    sink.transport = Never()  # type: ignore[misc]
    await sink.start()
    await sink.open([P0], 1)
    with pytest.raises(RetriableError, match="within 100 ms"):
        await sink.write(rows(numbers(0, 1)))
    await sink.stop()


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"url": "ftp://x/y"}, "url is http"),
        ({"url": "http://"}, "url is http"),
        ({"url": "http://x/a b"}, "without spaces"),
        ({"url": "http://x:99999/"}, "cannot be used"),
        ({"url": "http://me:pw@x/"}, "set authorization"),
        ({"headers": {"a b": "x"}}, "no name of a header"),
        ({"headers": {"Host": "x"}}, "by the connector itself"),
        ({"headers": {"Authorization": "x"}}, "set authorization"),
        ({"headers": {"x": "a\r\nb"}}, "cannot have"),
        ({"authorization": Secret("a\nb")}, "authorization has characters"),
        ({"idempotency": "request"}, "needs format=single"),
        ({"idempotency": "request", "format": "single", "idempotency_header": ""}, "needs idempotency.header"),
        ({"idempotency_prefix": "x" * 200}, "at most 100"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SinkSettings(**{"url": URL} | values)


class HttpCase(SinkCase):
    """Some records, one of them bad, in small requests."""

    rows = 14
    bad = frozenset({6})

    def __init__(self, knows: str, **values: Any) -> None:
        self.target = Target(knows, bad=self.bad)
        self.values = {"batch_records": 4} | values

    def make(self) -> Sink[Any]:
        return sink_on(self.target, **self.values)

    def stored(self) -> Sequence[int]:
        return self.target.stored

    def go_away(self) -> bool:
        self.target.away = True
        return True

    def come_back(self) -> None:
        self.target.away = False


CASES: dict[str, dict[str, Any]] = {
    "": {},
    "request": {"format": "single", "idempotency": "request"},
    "record": {"record": "envelope", "format": "ndjson", "idempotency": "record"},
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("knows", CASES)
def test_the_suite(knows: str) -> None:
    made = HttpCase(knows, **CASES[knows]).make()
    assert made.guarantee is (Guarantee.IDEMPOTENT if knows else Guarantee.AT_LEAST_ONCE)
    check_sink(lambda: HttpCase(knows, **CASES[knows]))

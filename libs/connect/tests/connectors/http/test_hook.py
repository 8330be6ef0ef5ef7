"""``http-source``: a sender is answered when its records are committed, repeats count once, and room is bounded."""

from __future__ import annotations

import asyncio
import base64
import hmac
import json
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.connect.tests.connectors.http.records import written
from libs.connect.tests.connectors.http.senders import SPLIT, Senders, hooked

from headrace_common.core.ids import Endpoint
from headrace_common.runtime.clock import give_way
from headrace_connect.connectors.http.bodies import RECORDS_MAX, BadBody, parse
from headrace_connect.connectors.http.hook import Hook
from headrace_connect.connectors.http.intake import Arrival, Intake, Outcome, Room
from headrace_connect.connectors.http.settings import SourceSettings
from headrace_connect.connectors.http.signatures import Verifier
from headrace_connect.connectors.http.source import HttpSource
from headrace_connect.connectors.http.window import SIZE_MAX, Window, digest_of
from headrace_connect.core.positions import POSITION_BYTES_MAX
from headrace_connect.plugin import Source
from headrace_connect.settings import Secret
from headrace_connect.testing import SourceCase, check_source

SECRET = "s3cret"
KEY = Secret(SECRET)


async def idle() -> None:
    """So that whatever can go on does."""
    for _ in range(30):
        await give_way()


# --- answers ----------------------------------------------------------------------------------------------------------


async def test_a_sender_is_answered_when_its_records_are_committed() -> None:
    async with hooked(headers_include=("X-Kind",)) as hook:
        first = hook.posting({"n": 1}, X_Kind="a")
        chunk = await hook.chunk()
        second = hook.posting({"n": 2})
        await hook.until_waiting(2)
        await idle()
        assert not first.done()
        await hook.source.committed(SPLIT, chunk.position)
        assert (await first).status_code == 202
        await idle()
        assert not second.done(), "its chunk is not committed"
        assert hook.rows == [{"n": 1}]
        assert chunk.headers == [[("X-Kind", b"a")]]
        assert chunk.drained
        assert chunk.timestamps_ms is not None
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert (await second).status_code == 202


PARENT = "00-00000000000000000000000000000abc-0000000000000def-01"


@pytest.mark.parametrize(
    ("traces", "own", "kept"),
    [
        (True, (), [("traceparent", PARENT.encode())]),
        (True, ("X-Kind",), [("X-Kind", b"a"), ("traceparent", PARENT.encode())]),
        (True, ("traceparent",), [("traceparent", PARENT.encode())]),
        (False, ("X-Kind",), [("X-Kind", b"a")]),
    ],
)
async def test_the_trace_of_a_request_goes_on_where_the_process_traces(
    traces: bool, own: tuple[str, ...], kept: list[tuple[str, bytes]]
) -> None:
    async with hooked(headers_include=own, traces=traces) as hook:
        sent = hook.posting({"n": 1}, X_Kind="a", traceparent=PARENT)
        chunk = await hook.chunk()
        assert chunk.headers == [kept]
        await hook.source.committed(SPLIT, chunk.position)
        assert (await sent).status_code == 202


@pytest.mark.parametrize("parent", [None, "nonsense"])
async def test_a_request_without_a_trace_gives_its_records_none(parent: str | None) -> None:
    async with hooked(traces=True) as hook:
        hook.posting({"n": 1}, **({} if parent is None else {"traceparent": parent}))
        assert not any((await hook.chunk()).headers or ())


async def test_what_was_aborted_is_read_again_and_its_sender_still_waits() -> None:
    async with hooked() as hook:
        sent = [hook.posting({"n": n}) for n in range(3)]
        await hook.until_waiting(3)
        committed = await hook.chunk()
        await hook.source.committed(SPLIT, committed.position)
        more = [hook.posting({"n": n}) for n in (3, 4)]
        await hook.until_waiting(2)
        await hook.chunk()  # its transaction is aborted
        await hook.read(committed.position, waits=True)
        hook.rows.clear()
        again = await hook.chunk()
        assert hook.rows == [{"n": 3}, {"n": 4}]
        await hook.source.committed(SPLIT, again.position)
        assert [(await one).status_code for one in sent + more] == [202] * 5


async def test_what_was_aborted_and_whose_sender_has_left_is_not_written() -> None:
    async with hooked() as hook:
        left, stays = hook.posting({"n": 1}), hook.posting({"n": 2})
        await hook.until_waiting(2)
        position = {**hook.source._intakes[0].position}
        await hook.chunk()
        left.cancel()
        await asyncio.wait([left])
        await idle()
        await hook.read(position, waits=True)
        hook.rows.clear()
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert hook.rows == [{"n": 2}]
        assert (await stays).status_code == 202
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)


async def test_a_request_whose_body_ends_after_the_task_is_told_so() -> None:
    room = Room(1, 100)
    intake = Intake("x", room, 1)
    assert room.enter()
    intake.close()
    late = Arrival(parse(b"1", "json", "none", 100), 0, 0)
    assert intake.offer(late) is late
    assert (late.outcome, room.requests, intake.waits) == (Outcome.LEFT, 0, False)


async def test_what_was_committed_before_reading_began_again_is_answered() -> None:
    async with hooked() as hook:
        sent = hook.posting({"n": 1})
        position = (await hook.chunk()).position
        await hook.read(position)
        assert (await sent).status_code == 202


async def test_a_position_of_another_instance_covers_nothing_of_ours() -> None:
    async with hooked(id_header="X-Id") as hook, hooked(id_header="X-Id") as other:
        theirs = other.posting({"n": 1}, X_Id="a")
        position = (await other.chunk()).position
        sent = [hook.posting({"n": 2}), hook.posting({"n": 1}, X_Id="a"), hook.posting({"n": 3}, X_Id="c")]
        await hook.until_waiting(3)
        await hook.chunk()
        await hook.source.committed(SPLIT, position)
        await idle()
        assert not any(one.done() for one in sent)
        await hook.read(position, waits=True)
        hook.rows.clear()
        chunk = await hook.chunk()
        assert (await sent[1]).status_code == 202, "its id is among those that are committed"
        await hook.source.committed(SPLIT, chunk.position)
        assert hook.rows == [{"n": 2}, {"n": 3}]
        assert [(await one).status_code for one in sent] == [202] * 3
        await other.source.committed(SPLIT, position)
        await theirs


async def test_a_repeat_is_answered_and_not_written_again() -> None:
    async with hooked(id_header="X-Id") as hook:
        first = hook.posting({"n": 1}, X_Id="a")
        await hook.until_waiting(1)
        waiting = hook.posting({"n": 1}, X_Id="a")
        await idle()
        chunk = await hook.chunk()
        handed = hook.posting({"n": 1}, X_Id="a")
        await idle()
        assert not any(one.done() for one in (first, waiting, handed))
        await hook.source.committed(SPLIT, chunk.position)
        assert [(await one).status_code for one in (first, waiting, handed)] == [202] * 3
        assert (await hook.post({"n": 1}, X_Id="a")).status_code == 202
        assert hook.rows == [{"n": 1}]
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)
        position = chunk.position
    async with hooked(id_header="X-Id") as later:
        await later.read(json.loads(json.dumps(position)))
        assert (await later.post({"n": 1}, X_Id="a")).status_code == 202
        assert not later.source._intakes[0].waits


async def test_a_sender_that_leaves_before_is_not_written() -> None:
    async with hooked(id_header="X-Id", answer_timeout_ms=60_000) as hook:
        left, stays = (hook.posting({"n": n}, X_Id="a") for n in (1, 1))
        await hook.until_waiting(1)
        await idle()
        left.cancel()
        await idle()
        assert hook.source._intakes[0].waits, "another one wants its answer"
        stays.cancel()
        await asyncio.wait([left, stays])
        await idle()
        assert not hook.source._intakes[0].waits
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)


@pytest.mark.parametrize("handed", [False, True])
async def test_a_sender_waits_no_longer_than_the_setting_says(handed: bool) -> None:
    async with hooked(answer_timeout_ms=100) as hook:
        sent = hook.posting({"n": 1})
        if handed:
            chunk = await hook.chunk()
        answer = await sent
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert ("not known" in answer.text) == handed
        assert hook.source._intakes[0].waits is False
        if handed:
            await hook.source.committed(SPLIT, chunk.position)
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)


async def test_whoever_waits_is_told_when_the_task_ends() -> None:
    async with hooked() as hook:
        waits = [hook.posting({"n": 1}), hook.posting({"n": 2})]
        await hook.until_waiting(2)
        await hook.source.stop()
        assert [(await one).status_code for one in waits] == [503, 503]
        assert (await hook.post({"n": 3})).status_code == 503


async def test_there_is_room_for_so_many_and_no_more() -> None:
    async with hooked(queue_requests=3, queue_bytes=1_024, body_bytes_max=1_000, retry_after_s=7) as hook:
        waits = [hook.posting({"n": n}) for n in range(3)]
        await hook.until_waiting(3)
        answer = await hook.post({"n": 3})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "7")
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert [(await one).status_code for one in waits] == [202] * 3
        large = [hook.posting("x" * 500) for _ in range(2)]
        await hook.until_waiting(2)
        assert (await hook.post("x" * 500)).status_code == 429
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert [(await one).status_code for one in large] == [202] * 2


@pytest.mark.parametrize(
    ("body", "path", "headers", "status"),
    [
        (b"{}", "/other", {}, 404),
        (b"{}", "/", {"Origin": "http://evil.test"}, 403),
        (b"{}", "/", {"Content_Encoding": "gzip"}, 415),
        (b"[" + b"1," * 700 + b"1]", "/", {}, 413),
        (b"{", "/", {}, 400),
        (b'{"a":1,"a":2}', "/", {}, 400),
        (b"null", "/", {}, 400),
        (b"", "/", {}, 400),
        (b'{"a":99999999999999999999}', "/", {}, 400),
        (b'[1,"x"]', "/", {}, 400),
        (b"\xff", "/", {}, 400),
        (b"[" * 100 + b"]" * 100, "/", {}, 400),
        (b"{}", "/", {"X_Id": "x" * 2_000}, 400),
    ],
)
async def test_what_cannot_be_written_is_refused_and_leaves_nothing(
    body: bytes, path: str, headers: dict[str, str], status: int
) -> None:
    async with hooked(body_bytes_max=1_024, id_header="X-Id") as hook:
        answer = await hook.post(body, path, **headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)
        assert (await hook.client.get("/")).headers["allow"] == "POST"


@pytest.mark.parametrize("bodies", [[{"a": 1}, {"a": 2}, {"b": "x"}], [{"a": 1}, {"a": "y"}, 5, "t"], [1, 2.5, 3]])
async def test_records_stay_as_they_came_whatever_else_comes(bodies: list[Any]) -> None:
    async with hooked() as hook:
        waits = [hook.posting(body) for body in bodies]
        await hook.until_waiting(len(bodies))
        records: list[Any] = []
        while hook.source._intakes[0].waits:
            chunk = await hook.chunk()
            records += written(chunk.rows)
        assert records == bodies
        await hook.source.committed(SPLIT, chunk.position)
        await asyncio.gather(*waits)


# --- signatures -------------------------------------------------------------------------------------------------------


def hmac_of(body: bytes, algorithm: str = "sha256") -> hmac.HMAC:
    return hmac.new(SECRET.encode(), body, algorithm)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("hub", "sha256=" + hmac_of(b"{}").hexdigest()),
        ("hex", hmac_of(b"{}").hexdigest()),
        ("base64", base64.b64encode(hmac_of(b"{}").digest()).decode()),
        ("token", SECRET),
    ],
)
async def test_senders_prove_that_they_know_the_secret(form: str, value: str) -> None:
    values: dict[str, Any] = {"signature_form": form, "signature_header": "X-Sign"}
    async with hooked(signature_secret=KEY, **values) as hook:
        sent = hook.posting(b"{}", X_Sign=value, Origin="http://page.test")
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert (await sent).status_code == 202
        for wrong in (value[:-1], value + "x", "", "sha256=", "é", value.replace("=", "")[1:]):
            answer = await hook.client.post("/", content=b"{}", headers=[(b"x-sign", wrong.encode("latin-1"))])
            assert answer.status_code == 401, wrong
        assert (await hook.post(b"{}")).status_code == 401
        if form != "token":
            assert (await hook.post(b"{ }", X_Sign=value)).status_code == 401
        assert (hook.source._room.requests, hook.source._room.bytes) == (0, 0)
    async with hooked(signature_secret=Secret("new"), signature_secret_previous=KEY, **values) as hook:
        sent = hook.posting(b"{}", X_Sign=value)
        await hook.source.committed(SPLIT, (await hook.chunk()).position)
        assert (await sent).status_code == 202


def test_the_signature_of_githubs_documentation() -> None:
    verifier = Verifier("hub", "sha256", ["It's a Secret to Everybody"])
    value = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    assert verifier.accepts(value, b"Hello, World!")
    assert not verifier.accepts(value.replace("sha256", "sha1"), b"Hello, World!")


# --- bodies -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "format_", "batch", "records"),
    [
        (b'[{"a":1},{"b":2}]', "json", "array", [{"a": 1, "b": None}, {"a": None, "b": 2}]),
        (b'{"a":1}', "json", "array", [{"a": 1}]),
        (b"[1,2]", "json", "none", [[1, 2]]),
        (b'{"a":1}\n\n{"a":2}\r\n', "json", "lines", [{"a": 1}, {"a": 2}]),
        (b"a\nb", "text", "none", ["a\nb"]),
        (b"a\n\xc3\xa9\n", "text", "lines", ["a", "é"]),
        (b"\xff\x00", "bytes", "none", [b"\xff\x00"]),
    ],
)
def test_bodies(body: bytes, format_: Any, batch: Any, records: list[Any]) -> None:
    assert parse(body, format_, batch, 1 << 20).to_list() == records


@pytest.mark.parametrize(
    ("body", "format_", "batch", "error"),
    [
        (b"[]", "json", "array", "no records"),
        (b"[1,null]", "json", "array", "null"),
        (b'{"a":1}\n{', "json", "lines", "not JSON"),
        (b"\n \n", "json", "lines", "empty"),
        (b"x\n" * (RECORDS_MAX + 1), "text", "lines", "is the most"),
        (b"[1.5,true]", "json", "array", "no one type"),
        (b'{"a":[18446744073709551616]}', "json", "none", "a whole number beyond 64 bits"),
        (b"\xff", "text", "none", "not UTF-8"),
    ],
)
def test_bodies_that_have_no_records(body: bytes, format_: Any, batch: Any, error: str) -> None:
    with pytest.raises(BadBody, match=error):
        parse(body, format_, batch, 1 << 20)


# --- the window and the ledger ----------------------------------------------------------------------------------------


@given(st.integers(1, 5), st.lists(st.integers(0, 8)))
def test_the_window_has_the_last_ids_whatever_is_repeated(size: int, ids: list[int]) -> None:
    window, known = Window(size), list[int]()
    for id_ in ids:
        window.add(digest_of(str(id_)))
        if id_ not in known:
            known = [*known, id_][-size:]
        window = Window.from_text(size, window.to_text())
        assert [one for one in range(9) if digest_of(str(one)) in window] == sorted(known)


def test_a_full_window_fits_into_a_position() -> None:
    room = Room(10_000, 1 << 20)
    intake = Intake("x" * 12, room, SIZE_MAX)
    for number in range(SIZE_MAX + 5):
        assert room.enter()
        intake.offer(Arrival(parse(b"1", "json", "none", 100), 0, 0, digest=digest_of(str(number))))
    intake.hand(10_000, 1 << 20)
    assert len(json.dumps(dict(intake.position))) < POSITION_BYTES_MAX - 100
    assert digest_of("4") not in intake._window
    assert digest_of("5") in intake._window


@pytest.mark.parametrize(
    "position",
    [
        {},
        {"by": "x", "n": -1, "ids": ""},
        {"by": "x", "n": 1, "ids": "?"},
        {"by": 1, "n": 1, "ids": ""},
        {"by": "x", "n": 1, "ids": "AAAA"},
    ],
)
async def test_offsets_that_somebody_wrote_by_hand(position: dict[str, Any]) -> None:
    source = HttpSource(SourceSettings())
    with pytest.raises(Exception, match="delete the connector's offsets"):
        await anext(source.read(SPLIT, position))


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"listen": "nowhere"}, "^listen: .* is not an address"),
        ({"route": "hooks"}, "begins with /"),
        ({"route": "/a?b"}, "begins with /"),
        ({"id_header": "a b"}, "id.header"),
        ({"signature_header": ""}, "signature.header"),
        ({"headers_include": ("a:",)}, "headers.include"),
        ({"format": "text", "batch": "array"}, "needs format=json"),
        ({"signature_secret": Secret("")}, "anybody knows it"),
        ({"signature_secret_previous": KEY}, "needs signature.secret"),
        ({"id_window": 321, "tasks_max": 2}, "needs tasks.max=1"),
        ({"queue_bytes": 1_024}, "more than queue.bytes"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        SourceSettings(**values)


def test_check_tries_the_address() -> None:
    assert HttpSource(SourceSettings("127.0.0.1:0")).check() == []
    assert "no address of this machine" in HttpSource(SourceSettings("192.0.2.1:8088")).check()[0]


# --- the suite --------------------------------------------------------------------------------------------------------


class HookCase(SourceCase):
    """Senders that ask each instance at once, until they are answered with 202."""

    rows = 14
    ordered = False

    def __init__(self, window: int) -> None:
        self.window = window
        self.senders = Senders({f"id-{n}": {"n": n} for n in range(self.rows)})

    def make(self) -> Source[Any]:
        return self.senders.make(id_window=self.window)

    def go_away(self) -> bool:
        """Connections are cut, and whoever listens from now on finds the address taken."""
        self.senders.taken = True
        self.senders.cut_connections()
        return True

    def come_back(self) -> None:
        self.senders.taken = False

    def identify(self, key: bytes | None, value: bytes | None) -> Hashable:
        assert value is not None
        return int(json.loads(value)["n"])


@pytest.mark.timeout(600)
@pytest.mark.parametrize("window", [256, 2 * SIZE_MAX])
def test_the_suite(window: int) -> None:
    check_source(lambda: HookCase(window))


async def test_one_server_is_for_all_positions() -> None:
    opened: list[Hook] = []

    @asynccontextmanager
    async def serve(hook: Hook, _: SourceSettings) -> AsyncIterator[Endpoint]:
        opened.append(hook)
        await give_way()
        yield Endpoint("memory", 1)

    made = type("Counted", (HttpSource,), {"serve": staticmethod(serve)})
    source = made(SourceSettings(id_header="X-Id", id_window=2 * SIZE_MAX))
    await asyncio.gather(*(anext(source.read(split, None)) for split in source.splits()))
    await source.stop()
    assert len(opened) == 1


def test_ids_are_dealt_out_over_positions() -> None:
    values = {"id_header": "X-Id", "id_window": 2 * SIZE_MAX + 1}
    splits = HttpSource(SourceSettings(**values)).splits()
    assert [split.id for split in splits] == ["requests-3-0", "requests-3-1", "requests-3-2"]

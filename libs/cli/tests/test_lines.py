"""Records as lines, both ways, and where consuming starts."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.records import Record, TimestampType
from headrace_cli.commands.lines import parse_json, render_json, renderer
from headrace_cli.commands.starts import At, Beginning, End, Last, Since, check_span, parse_start, parse_until
from headrace_cli.exits import CommandFailed, ExitCode

data = st.none() | st.binary(max_size=30) | st.text(max_size=20).map(str.encode)


def record(
    key: bytes | None = b"k", value: bytes | None = b"v", headers: Sequence[tuple[str, bytes | None]] = ()
) -> Record:
    return Record("flights", 2, 41, key, value, headers, 1_700_000_000_000, TimestampType.CREATE_TIME, 0)


@given(data, data, st.lists(st.tuples(st.text(max_size=8), data), max_size=3))
def test_what_consume_prints_as_json_produce_reads_back(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    read = parse_json(render_json(record(key, value, headers)), "line 1")
    assert (read.key, read.value, read.headers) == (key, value, headers)
    assert (read.partition, read.timestamp_ms) == (2, 1_700_000_000_000)
    as_base64 = parse_json(renderer("json", as_base64=True)(record(key, value, headers)), "line 1")
    assert (as_base64.key, as_base64.value, as_base64.headers) == (key, value, headers)


def test_formats() -> None:
    render = renderer(r"%t/%p@%o %T %k=%s [%h] 100%%\n", as_base64=False)
    assert render(record(headers=[("h", b"1"), ("i", None)])) == (b"flights/2@41 1700000000000 k=v [h=1,i=] 100%\n")
    binary = bytes(range(256))
    assert renderer("%s", as_base64=False)(record(value=binary)) == binary
    assert renderer("%s", as_base64=True)(record(value=binary)) == base64.b64encode(binary)
    assert renderer("%s", as_base64=False)(record(value=None)) == b""


def test_an_unknown_letter_is_named() -> None:
    with pytest.raises(CommandFailed, match="%q is not known"):
        renderer("%q", as_base64=False)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"no json", "line 7 is no JSON"),
        (b"[1]", "line 7 is not of the form"),
        (b'{"key": "k"}', "line 7 is not of the form"),
        (b'{"value": {"base64": "?"}}', "is no base64"),
        ('{"value": {"base64": "ü"}}'.encode(), "is no base64"),
        (b'{"value": "v", "headers": [["a"]]}', "headers are an object"),
        (b'{"value": "v", "Key": "k"}', "has 'Key', which a record does not; it may have headers, key"),
        (b'{"value": "v", "headers": 5}', "headers are an object"),
        (b'{"value": "v", "partition": "0"}', "partition is a whole number"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(line: bytes, said: str) -> None:
    with pytest.raises(CommandFailed, match=said):
        parse_json(line, "line 7")


def test_other_json_values_are_sent_as_json() -> None:
    sent = parse_json(b'{"key": 5, "value": {"a": [1, null]}, "headers": {"h": "x"}}', "line 1")
    assert (sent.key, sent.value, sent.headers) == (b"5", b'{"a":[1,null]}', [("h", b"x")])


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("beginning", Beginning()),
        ("earliest", Beginning()),
        ("end", End()),
        ("12", At(12)),
        ("-5", Last(5)),
        ("10m", Since(1_000_000_000 - 600_000)),
        ("1.5h", Since(1_000_000_000 - 5_400_000)),
        ("250ms", Since(1_000_000_000 - 250)),
        ("1970-01-02", Since(86_400_000)),
        ("1970-01-01T01:00:00+01:00", Since(0)),
    ],
)
def test_starts(text: str, start: object) -> None:
    assert parse_start(text, now_ms=1_000_000_000) == start


@pytest.mark.parametrize("text", ["", "soon", "10x", "--5", "2026-13-01"])
def test_other_starts_are_refused_with_what_is_known(text: str) -> None:
    with pytest.raises(CommandFailed, match="it takes beginning, end"):
        parse_start(text, now_ms=0)


@pytest.mark.parametrize(
    ("start", "until"),
    [
        ("5m", "1h"),
        ("1970-01-01T00:10", "1970-01-01T00:05"),
        ("1s", "1970-01-01T00:00"),
        ("7", "6"),
        ("-3", "-4"),
        ("end", "-1"),
    ],
)
def test_an_end_before_the_start_is_refused(start: str, until: str) -> None:
    with pytest.raises(CommandFailed, match=f"--until '{until}' is before --from '{start}'") as refused:
        check_span(parse_start(start, 3_600_000), parse_until(until, 3_600_000), (start, until))
    assert refused.value.exit_code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("start", "until"),
    [
        ("1h", "5m"),
        ("5m", "5m"),
        ("6", "7"),
        ("-4", "-3"),
        ("-4", "end"),
        ("end", "end"),
        ("beginning", "-1"),
        # Which comes first is known to the partitions alone.
        ("98", "1h"),
        ("5m", "3"),
        ("98", "-1"),
        ("end", "1h"),
    ],
)
def test_what_may_lie_in_order_is_taken(start: str, until: str) -> None:
    check_span(parse_start(start, 3_600_000), parse_until(until, 3_600_000), (start, until))

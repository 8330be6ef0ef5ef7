"""The pipe between workers and hosts: messages to bytes and back, rubbish, versions."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace_connect.core import host_messages as messages
from headrace_connect.core.counts import Counts
from headrace_connect.core.errors import Fault
from headrace_connect.core.fork_messages import (
    Fork,
    ForkReport,
    ForkServerReady,
    HostEnded,
    HostForked,
    HostNotForked,
)
from headrace_connect.core.host_messages import Command, Report
from headrace_connect.core.host_protocol import (
    LINE_BYTES_MAX,
    VERSION,
    MessageTooLarge,
    NotAMessage,
    OtherVersion,
    decode_command,
    decode_fork_order,
    decode_fork_report,
    decode_report,
    encode,
)
from headrace_connect.core.progress import Progress
from headrace_connect.core.task import State

SPLITS = (messages.SplitForm("a", {"path": "/a", "sizes": [1, 2]}), messages.SplitForm("ü"))
CONFIG = {"name": "shop", "connector.class": "files", "password": "${env:X}"}
COMMANDS: list[Command] = [
    messages.Open({"bootstrap_servers": "a:1", "default_api_timeout_ms": 5}, 30_000, 5_000, ("/secrets",), None),
    messages.StartTask("shop", 3, CONFIG, SPLITS, 2**62, paused=True),
    messages.PauseTask("shop", 3),
    messages.ResumeTask("shop", 3),
    messages.StopTask("shop", 3),
    messages.Watch("shop", 17, CONFIG),
    messages.Unwatch("shop"),
    messages.Validate(1, CONFIG, offline=True),
    messages.Preview(2, CONFIG, 20),
    messages.Settle(8, CONFIG),
    messages.Rewind(9, CONFIG, (messages.PositionForm("t", 0, 5), messages.PositionForm("t", 1, None)), True),
    messages.Verify(6, CONFIG, ("orders",), 10, repair=True),
    messages.Snapshot(7, CONFIG, ("public.orders",)),
    messages.Describe(3, "files"),
    messages.ListPlugins(4),
    messages.Ping(5),
]
REPORTS: list[Report] = [
    messages.VerifyProgress(6, Progress(100, 100, 40)),
    messages.HostOpened(77, "3.11.2", "0.1.0"),
    messages.TaskReport("shop", 3, 9, State.RESTARTING, "away", "Traceback\n…", Fault.WORLD, 2, 4_000),
    messages.TaskReport("shop", 3, 9, State.RUNNING),
    messages.TopicSeen("shop", 3, "orders"),
    messages.Told("shop", 3, "drift", "a column", {"table": "orders"}),
    messages.WatchReport("shop", 17, messages.Kind.SOURCE, "", 2, SPLITS),
    messages.WatchFailed("shop", 17, Fault.CONFIG, "no such key"),
    messages.Answer(1, {"problems": [{"key": "a", "message": "b"}]}),
    messages.NoAnswer(2, Fault.BUG, "KeyError: 'x'", "Traceback"),
    messages.Pong(5),
    messages.Pong(
        6, (messages.TaskCounts("shop", 3, Counts(7, 700, lag_records=0)), messages.TaskCounts("b", 0, Counts()))
    ),
]
FORK_REPORTS: list[ForkReport] = [
    ForkServerReady(7),
    HostForked(1, 77),
    HostNotForked(2, "no memory"),
    HostEnded(1, -9),
]


def test_every_message_comes_back_as_it_was() -> None:
    assert {type(one) for one in COMMANDS} == set(get_args(Command))
    assert {type(one) for one in REPORTS} == set(get_args(Report))
    for command in COMMANDS:
        assert decode_command(encode(command)) == command
    for report in REPORTS:
        assert decode_report(encode(report)) == report
    assert {type(one) for one in FORK_REPORTS} == set(get_args(ForkReport))
    assert decode_fork_order(encode(Fork(3))) == Fork(3)
    for said in FORK_REPORTS:
        assert decode_fork_report(encode(said)) == said


def test_a_message_is_a_line_that_says_its_version_and_type() -> None:
    line = encode(messages.PauseTask("shop", 3))
    assert json.loads(line) == {"v": VERSION, "type": "PauseTask", "connector": "shop", "task": 3}
    assert line.endswith(b"\n")
    assert b"\n" not in encode(messages.NoAnswer(1, Fault.BUG, "two\nlines"))[:-1]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "no JSON"),
        (b"\n", "no JSON"),
        (b"a plugin's print\n", "no JSON"),
        (b"\xff\xfe", "no JSON"),
        (b"[1]", "no message"),
        (b'"text"', "no message"),
        (b"{}", "no message"),
        (b'{"v":1}', "'None' is no message"),
        (b'{"v":1,"type":"Explode"}', "'Explode' is no message"),
        (b'{"v":1,"type":"Pong","number":1}', "'Pong' is no message"),
        (b'{"v":1,"type":["Ping"],"number":1}', "is no message"),
        (b'{"v":1,"type":"Ping"}', "Ping.number is missing"),
        (b'{"v":1,"type":"Ping","number":"1"}', "Ping.number is '1'"),
        (b'{"v":1,"type":"Ping","number":true}', "Ping.number is 'True'"),
        (b'{"v":1,"type":"Ping","number":1.5}', "Ping.number is '1.5'"),
        (b'{"v":1,"type":"Ping","number":null}', "Ping.number is 'None'"),
        (b'{"v":1,"type":"Unwatch","connector":{}}', "Unwatch.connector"),
        (b'{"v":1,"type":"Watch","connector":"a","number":1,"config":{"k":1}}', "Watch.config is '1'"),
        (b'{"v":1,"type":"Watch","connector":"a","number":1,"config":[]}', "Watch.config"),
        (b'{"v":1,"type":"StartTask","connector":"a","task":0,"config":{},"splits":[{}]}', "splits.id is missing"),
        (b'{"v":1,"type":"StartTask","connector":"a","task":0,"config":{},"splits":["a"]}', "StartTask.splits"),
    ],
)
def test_rubbish_is_a_typed_error(line: bytes, says: str) -> None:
    with pytest.raises(NotAMessage, match=says):
        decode_command(line)


@pytest.mark.parametrize("version", [b"0", b"2", b'"1"', b"null", b"[]"])
def test_another_version_is_told_as_one(version: bytes) -> None:
    with pytest.raises(OtherVersion, match=f"this one {VERSION}: give the worker and its environments the same"):
        decode_command(b'{"v":' + version + b',"type":"Later","fields":{}}')


def test_a_state_that_is_none_is_refused() -> None:
    line = encode(messages.TaskReport("a", 0, 1, State.RUNNING)).replace(b"RUNNING", b"FLYING")
    with pytest.raises(NotAMessage, match=r"TaskReport\.state is 'FLYING'"):
        decode_report(line)


def test_fields_that_are_not_known_are_left_out_and_those_with_a_default_may_be_missing() -> None:
    line = b'{"v":1,"type":"StartTask","connector":"a","task":0,"config":{},"since":"version 1.5"}'
    assert decode_command(line) == messages.StartTask("a", 0, {})


def test_a_message_that_is_too_large_is_not_made() -> None:
    with pytest.raises(MessageTooLarge, match=f"{LINE_BYTES_MAX} is the most"):
        encode(messages.Watch("a", 1, {"k": "x" * LINE_BYTES_MAX}))


def test_what_is_no_json_is_not_made() -> None:
    with pytest.raises(TypeError):
        encode(messages.WatchReport("a", 1, messages.Kind.SOURCE, "", 1, (messages.SplitForm("s", {"x": {1, 2}}),)))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(st.sampled_from(COMMANDS), st.data())
def test_whatever_stands_in_a_field_it_is_a_message_or_a_typed_error(command: Command, data: st.DataObject) -> None:
    names = [field.name for field in dataclasses.fields(command)]
    given: dict[str, Any] = json.loads(encode(command))
    given[data.draw(st.sampled_from([*names, "v", "type"]))] = data.draw(json_values)
    line = json.dumps(given).encode()
    try:
        made = decode_command(line)
    except NotAMessage:
        return
    assert decode_command(encode(made)) == made

"""Last lines of a child."""

from __future__ import annotations

import logging

import pytest

from headrace_connect_worker.adapters.host_output import KEPT_BYTES, KEPT_LINES, LOGGED_LINES_MAX, Output, Whose


def test_the_last_lines_are_kept_and_no_more() -> None:
    output = Output("shop")
    for number in range(100_000):
        output.feed(b"line %d\n" % number)
    lines = output.last_lines.splitlines()
    assert len(lines) == KEPT_LINES
    assert lines[-1] == "line 99999"


def test_a_line_without_end_is_bounded() -> None:
    output = Output("shop")
    for _ in range(100):
        output.feed(b"x" * 65_536)
    assert 0 < len(output.last_lines) <= KEPT_BYTES


def test_bytes_that_are_no_text_are_shown_all_the_same() -> None:
    output = Output("shop")
    output.feed(b"\xff\xfe caf\xc3")
    output.feed(b"\xa9\n")
    assert output.last_lines.endswith("café")


def test_a_flood_is_logged_within_bounds(caplog: pytest.LogCaptureFixture) -> None:
    output = Output("shop")
    with caplog.at_level(logging.INFO, "headrace_connect_worker.adapters.host_output"):
        output.feed(b"a line\n" * 1_000)
        assert len(caplog.records) == LOGGED_LINES_MAX
        output.breathe()
        assert caplog.records[-1].getMessage() == f"{1_000 - LOGGED_LINES_MAX} more lines are left out"
        output.feed(b"half ")
        output.feed(b"a line\n")
    assert caplog.records[-1].getMessage() == "half a line"


def test_each_line_says_of_which_connector_and_task_it_is(caplog: pytest.LogCaptureFixture) -> None:
    """What the line itself says counts before for whom the host works alone."""
    whose = Whose("shop", 1)
    output = Output("shop", lambda: whose)
    with caplog.at_level(logging.INFO, "headrace_connect_worker.adapters.host_output"):
        output.feed(b"printed\n[a%2Fb 3] INFO x: logged\n[a%2Fb] INFO x: of the watch\n")
        whose = Whose()
        output.feed(b"of several\n")
    named = [
        (one.getMessage(), one.__dict__.get("connector"), one.__dict__.get("task"), one.__dict__["host"])
        for one in caplog.records
    ]
    assert named == [
        ("printed", "shop", 1, "shop"),
        ("INFO x: logged", "a/b", 3, "shop"),
        ("INFO x: of the watch", "a/b", None, "shop"),
        ("of several", None, None, "shop"),
    ]
    assert "[a%2Fb 3] INFO x: logged" in output.last_lines

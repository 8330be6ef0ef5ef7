"""How long a change waits for others."""

from __future__ import annotations

from headrace_connect.connectors.postgres_cdc.lingering import BACKLOG_MS, LINGER_MS, Lingering


def give(lingering: Lingering, at_ms: float) -> None:
    lingering.begin(at_ms)
    lingering.end(at_ms)


def test_a_change_after_a_pause_waits_for_nobody() -> None:
    lingering = Lingering()
    lingering.begin(100)
    assert lingering.left_ms(100, caught_up=True) <= 0
    give(lingering, 100)
    lingering.begin(100 + LINGER_MS)
    assert lingering.left_ms(100 + LINGER_MS, caught_up=True) <= 0


def test_what_follows_closely_is_given_together() -> None:
    lingering = Lingering()
    give(lingering, 100)
    lingering.begin(101)
    assert lingering.left_ms(101, caught_up=True) == LINGER_MS - 1
    assert lingering.left_ms(102, caught_up=True) == LINGER_MS - 2
    lingering.end(105)
    lingering.begin(106)
    assert lingering.left_ms(106, caught_up=True) == LINGER_MS - 1


def test_a_look_that_finds_nothing_does_not_hold_up_what_comes_next() -> None:
    lingering = Lingering()
    lingering.end(100)
    lingering.begin(101)
    assert lingering.left_ms(101, caught_up=True) <= 0


def test_while_there_is_a_backlog_changes_wait_from_when_they_came() -> None:
    lingering = Lingering()
    assert lingering.left_ms(100, caught_up=False) <= 0
    lingering.begin(100)
    assert lingering.left_ms(110, caught_up=False) == BACKLOG_MS - 10

"""Waits until replicas have moved, telling how it goes; for ``partition move``, ``rebalance`` and ``decommission``."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any, Final

from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.output import bytes_for_people, format_count
from headrace_cli.replication_view import Named, reassignments, set_throttle

if TYPE_CHECKING:
    from headrace import AdminClient
    from headrace_cli.session import Session

POLL_SECONDS: Final = 0.5
TELL_SECONDS: Final = 5.0


def wait_for_moves(session: Session, admin: AdminClient, partitions: Collection[Named], seconds: float) -> None:
    """
    Return when none of these partitions is being changed.

    Raises:
        CommandFailed: not in this time; it goes on without us.
    """

    def left() -> int:
        found = [
            p for p in reassignments(admin)["reassignments"] if (p["topic"], p["partition"]["partition"]) in partitions
        ]
        tell(session, found)
        return len(found)

    tell = Teller()
    wait_for(left, seconds)


def wait_for(left: Callable[[], int], seconds: float) -> None:
    """
    Ask until nothing is left.

    Raises:
        CommandFailed: something still is after ``seconds``.
    """
    end = time.monotonic() + seconds
    while number := left():
        if time.monotonic() >= end:
            raise CommandFailed(
                f"{format_count(number, 'partition')} still on the move after {seconds:.0f} s; it goes on by itself",
                ExitCode.TIMED_OUT,
                "`headrace partition reassignments` shows how far it is, `headrace partition cancel` ends it.",
            )
        time.sleep(POLL_SECONDS)


class Teller:
    """Says on stderr now and then how far it is."""

    def __init__(self) -> None:
        self._last: float | None = None

    def __call__(self, session: Session, found: list[dict[str, Any]]) -> None:
        """What is under way now."""
        now = time.monotonic()
        if not found or (self._last is not None and now - self._last < TELL_SECONDS):
            return
        self._last = now
        session.say(summary(found))


def summary(found: list[dict[str, Any]]) -> str:
    """One line about all that is under way. Pure."""
    news = [r | {"of": p["leader_bytes"] or 0} for p in found for r in p["new_replicas"]]
    done = sum(min(r["of"], r["bytes"] or 0) if not r["in_sync"] else r["of"] for r in news)
    whole = sum(r["of"] for r in news)
    percent = f", {100 * done // whole} %" if whole else ""
    return (
        f"{format_count(len(found), 'partition')} on the move: {bytes_for_people(done)} of {bytes_for_people(whole)} "
        f"copied{percent}{waiting(found)}"
    )


def waiting(found: list[dict[str, Any]]) -> str:
    """Whom it waits for, to be put behind a sentence; empty: nobody. Pure."""
    away = sorted({b for p in found for b in p["waits_for"]})
    if not away:
        return ""
    number = sum(bool(p["waits_for"]) for p in found)
    who = (
        f"broker {away[0]}, which is away" if len(away) == 1 else f"brokers {', '.join(map(str, away))}, which are away"
    )
    return f"; {number:,} {'waits' if number == 1 else 'wait'} for {who}"


def clear_throttle(session: Session, admin: AdminClient) -> None:
    """Take away what this command set."""
    set_throttle(admin, None)
    session.say("the throttle is off again")

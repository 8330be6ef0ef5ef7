"""What a client does about the errors of a coordinator: which it asks again, which it looks for, what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from headrace._core.remedies import Asker, Remedy, remedy_for
from headrace._transport.port import Coordinator
from headrace.aio import _coordinators
from headrace.aio._coordinators import CoordinatorLink
from headrace.errors import HeadraceError, WaitTimedOut, error_for
from headrace.settings import ClientSettings
from headrace_common.core.errors import RETRIABLE, ErrorCode
from headrace_common.core.ids import NodeId
from headrace_common.runtime.clock import SystemClock

ONE = Coordinator(NodeId(1), "127.0.0.1:1")
TWO = Coordinator(NodeId(2), "127.0.0.1:2")
LONG_MS = 60_000.0


def link_to(*found: Coordinator) -> CoordinatorLink:
    """Brokers name these, one after the other."""
    names: Iterator[Coordinator] = iter(found)

    async def find() -> Coordinator:
        return next(names)

    return CoordinatorLink(find, ClientSettings(retry_backoff_ms=1), SystemClock())


def saying(*words: ErrorCode | None, asked: list[Coordinator]) -> Callable[[Coordinator, float], Awaitable[str]]:
    """Answers with these errors, then well."""
    left = iter(words)

    async def attempt(coordinator: Coordinator, timeout_ms: float) -> str:
        asked.append(coordinator)
        if code := next(left, None):
            raise error_for(code, "")
        return "done"

    return attempt


def ask(link: CoordinatorLink, *words: ErrorCode, within_ms: float = LONG_MS) -> list[Coordinator]:
    """Who was asked until there was an answer."""
    asked: list[Coordinator] = []

    async def run() -> None:
        assert await link.ask("it", saying(*words, asked=asked), SystemClock().monotonic_ms() + within_ms) == "done"

    asyncio.run(run())
    return asked


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.REQUEST_TIMED_OUT,
    ],
)
def test_who_coordinates_no_more_is_looked_for_anew(code: ErrorCode) -> None:
    assert ask(link_to(ONE, TWO), code) == [ONE, TWO]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.OVERLOADED,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_what_passes_is_waited_for_with_the_same(code: ErrorCode) -> None:
    assert ask(link_to(ONE, TWO), code, code) == [ONE, ONE, ONE]


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.UNKNOWN_SERVER_ERROR,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.PRODUCER_FENCED,
        ErrorCode.TRANSACTION_ABORTABLE,
        ErrorCode.TXN_VERDICT_UNKNOWN,
    ],
)
def test_what_the_application_has_to_know_is_told_at_once(code: ErrorCode) -> None:
    with pytest.raises(HeadraceError) as told:
        ask(link_to(ONE), code)
    assert told.value.code is code


def test_waiting_has_an_end() -> None:
    with pytest.raises(WaitTimedOut, match="it was not answered in time; the last failure was"):
        ask(link_to(ONE), *[ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 10_000, within_ms=20)


def test_what_was_said_before_is_told_when_the_deadline_cuts_the_last_attempt() -> None:
    words = [ErrorCode.UNSTABLE_OFFSET_COMMIT, *[ErrorCode.REQUEST_TIMED_OUT] * 10]

    async def attempt(coordinator: Coordinator, timeout_ms: float) -> str:
        code = words.pop(0)
        if code is ErrorCode.REQUEST_TIMED_OUT:
            await asyncio.sleep(timeout_ms / 1_000)
        raise error_for(code, "t-0 has a position in an open transaction" if len(words) == 10 else "cut")

    async def run() -> None:
        await link_to(ONE, TWO).ask("it", attempt, SystemClock().monotonic_ms() + 100)

    with pytest.raises(WaitTimedOut, match="the last failure was: t-0 has a position in an open transaction"):
        asyncio.run(run())


def test_a_silent_coordinator_that_was_replaced_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_coordinators, "SILENCE_S", 0.001)
    link = link_to(ONE, TWO, TWO)

    async def attempt(coordinator: Coordinator, timeout_ms: float) -> Coordinator:
        if coordinator == ONE:
            await asyncio.Event().wait()
        return coordinator

    async def run() -> Coordinator:
        return await link.ask("it", attempt, SystemClock().monotonic_ms() + LONG_MS)

    assert asyncio.run(run()) == TWO


DIFFER = [
    (ErrorCode.CORRUPT_MESSAGE, Remedy.RETRY, Remedy.RAISE),
    (ErrorCode.UNKNOWN_SERVER_ERROR, Remedy.RAISE, Remedy.RETRY),
    (ErrorCode.OFFSET_OUT_OF_RANGE, Remedy.RAISE, Remedy.RESET),
]


@pytest.mark.parametrize(("code", "producer", "consumer"), DIFFER)
def test_where_producers_and_consumers_differ(code: ErrorCode, producer: Remedy, consumer: Remedy) -> None:
    assert remedy_for(Asker.PRODUCER, code) is producer
    assert remedy_for(Asker.CONSUMER, code) is consumer


def test_else_they_do_the_same() -> None:
    rest = set(ErrorCode) - {code for code, *_ in DIFFER}
    assert {code for code in rest if remedy_for(Asker.PRODUCER, code) is not remedy_for(Asker.CONSUMER, code)} == set()


def test_what_passes_is_told_to_nobody_at_once_but_where_waiting_cannot_help() -> None:
    told = {(who, code) for who in Asker for code in RETRIABLE if remedy_for(who, code) is Remedy.RAISE}
    assert told == {
        (Asker.CONSUMER, ErrorCode.CORRUPT_MESSAGE),
        (Asker.COORDINATED, ErrorCode.REBALANCE_IN_PROGRESS),
    }


def test_a_member_talks_again_after_what_may_be_the_coordinators_own_trouble() -> None:
    assert remedy_for(Asker.MEMBER, ErrorCode.UNKNOWN_SERVER_ERROR) is Remedy.RETRY
    assert remedy_for(Asker.MEMBER, ErrorCode.REBALANCE_IN_PROGRESS) is Remedy.REJOIN
    assert remedy_for(Asker.MEMBER, ErrorCode.FENCED_MEMBER_EPOCH) is Remedy.START_OVER
    assert remedy_for(Asker.MEMBER, ErrorCode.FENCED_INSTANCE_ID) is Remedy.RAISE

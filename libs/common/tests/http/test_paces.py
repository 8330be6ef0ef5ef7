"""Reads of records by REST: so many a second and at one time, of each principal by itself."""

from __future__ import annotations

from contextlib import ExitStack

import pytest
from libs.common.tests.kit.clock import FakeClock

from headrace_common.core.access.authentication import Shown
from headrace_common.core.access.principal import Principal, PrincipalType
from headrace_common.core.access.state import Caller
from headrace_common.core.errors import ThrottlingQuotaExceeded
from headrace_common.core.quotas.token_bucket import BUCKET_S
from headrace_common.http.paces import PaceBounds, Paces

ALICE, BOB = (Shown(Caller(Principal(PrincipalType.USER, name))) for name in ("alice", "bob"))


def paces(*, reads: int = 0, at_once: int = 0, closed: bool = True) -> Paces:
    return Paces(PaceBounds(caller=0, stranger=0, reads=reads, reads_at_once=at_once), FakeClock(), lambda: closed)


def test_reads_at_one_time_are_bounded_and_each_that_ends_makes_room() -> None:
    counted = paces(at_once=2)
    with ExitStack() as under_way:
        for _ in range(2):
            under_way.enter_context(counted.reading(ALICE))
        with pytest.raises(ThrottlingQuotaExceeded, match="2 reads of records of User:alice"), counted.reading(ALICE):
            pass
        with counted.reading(BOB):
            pass
    for _ in range(3):
        with pytest.raises(ValueError, match="it fails"), counted.reading(ALICE):
            raise ValueError("it fails")


def test_reads_a_second_are_bounded() -> None:
    counted = paces(reads=3)

    def read(who: Shown, times: int = 1) -> None:
        for _ in range(times):
            with counted.reading(who):
                pass

    read(ALICE, 3 * BUCKET_S)
    with pytest.raises(ThrottlingQuotaExceeded, match="3 reads of records of User:alice a second"):
        read(ALICE, 3 * BUCKET_S)
    read(BOB)


def test_an_open_cluster_counts_nobody() -> None:
    counted = paces(reads=1, at_once=1, closed=False)
    with ExitStack() as under_way:
        for _ in range(50):
            under_way.enter_context(counted.reading(ALICE))

"""Meters: who shares a quota is counted together, some are remembered, a new quota counts from the next request."""

from __future__ import annotations

from dataclasses import replace

from libs.common.tests.kit.access import ALICE, BOB

from headrace_common.core.access.control import Control, Rights
from headrace_common.core.access.principal import Principal
from headrace_common.core.access.rows import View
from headrace_common.core.access.state import Caller
from headrace_common.core.quotas.entities import DEFAULT, Clients
from headrace_common.core.quotas.kinds import Rate
from headrace_common.core.quotas.metered import Metered
from headrace_common.core.quotas.meters import Meter
from headrace_common.core.quotas.state import Group, Holding, Quotas, alter

WRITES = Rate.PRODUCER_BYTE_RATE


def held(value: float, *group: str) -> Holding:
    user, client_id = group
    return Holding(value, (user, client_id), Clients(DEFAULT, DEFAULT))


A, B = held(10, "User:a", ""), held(10, "User:b", "")


def test_who_shares_a_quota_is_counted_together_and_nobody_else() -> None:
    meter = Meter(WRITES)
    assert meter.record(A, 110, 0) == 0
    assert meter.record(B, 110, 0) == 0
    assert meter.record(A, 10, 0) == 1_000


def test_changes_of_topics_are_refused_while_there_is_a_debt() -> None:
    meter = Meter(Rate.CONTROLLER_MUTATION_RATE)
    assert meter.take(A, 130, 0) is None
    assert meter.take(A, 1, 0) == 2_000
    assert meter.take(B, 1, 0) is None
    assert meter.record(A, 10, 0) == 3_000


def test_groups_that_are_idle_are_forgotten_when_another_comes() -> None:
    meter = Meter(WRITES)
    meter.record(A, 110, 0)
    meter.record(B, 110, 5_000)
    meter.record(held(10, "User:c", ""), 1, 10_999)
    assert len(meter.counts) == 3
    meter.record(held(10, "User:d", ""), 1, 11_000)
    assert len(meter.counts) == 3
    meter.counts.forget_idle(30_000)
    assert len(meter.counts) == 0


def test_a_debt_is_not_forgotten_while_it_counts() -> None:
    meter = Meter(Rate.CONTROLLER_MUTATION_RATE)
    meter.take(A, 1_000, 0)
    meter.take(B, 1, 60_000)
    assert meter.take(A, 1, 60_000) == 29_000


def test_no_more_are_remembered_than_may_be_and_those_that_came_last() -> None:
    meter = Meter(WRITES, groups_max=3)
    groups = [held(1, f"User:{n}", "") for n in range(5)]
    for group in groups[:3]:
        meter.record(group, 20, 0)
    assert meter.record(groups[0], 1, 1) > 0
    for group in groups[3:]:
        assert meter.record(group, 10, 2) == 0
    assert len(meter.counts) == 3
    assert meter.record(groups[0], 1, 3) > 0
    assert meter.record(groups[1], 10, 4) == 0, "it was forgotten, and nobody waits for what others did"


def rights_of(view: View, caller: Caller) -> tuple[Control, Rights]:
    control = Control()
    control.renew(view)
    return control, Rights(control, caller)


def test_a_new_quota_counts_from_the_next_request_and_what_was_counted_stays() -> None:
    view = View(quotas=alter(Quotas(), [(Clients(str(ALICE)), {WRITES: 10})]))
    control, rights = rights_of(view, Caller(ALICE))
    meter = Meter(WRITES)
    metered = Metered(rights, meter, "app")
    assert metered.record(110, 0) == 0
    assert metered.most_at_once() == 110
    control.renew(replace(view, quotas=alter(view.quotas, [(Clients(str(ALICE)), {WRITES: 5})])))
    assert metered.record(10, 0) == 2_000
    assert metered.most_at_once() == 55
    control.renew(View())
    assert metered.record(10_000, 0) == 0
    assert metered.most_at_once() is None
    assert metered.take(10_000, 0) is None
    control.renew(view)
    assert metered.take(1, 0) == 1_000
    assert metered.record(10, 0) == 2_000


def test_streams_of_one_user_share_and_which_quota_holds_is_found_once_for_a_generation() -> None:
    class Watched(Quotas):
        found = 0

        def find_rate(self, rate: Rate, user: Principal, client_id: str) -> Holding | None:
            type(self).found += 1
            return super().find_rate(rate, user, client_id)

    quotas = Watched(alter(Quotas(), [(Clients(DEFAULT), {WRITES: 10})]).values)
    control, rights = rights_of(View(quotas=quotas), Caller(ALICE))
    meter = Meter(WRITES)
    streams = [Metered(rights, meter, client_id) for client_id in ("a", "b")]
    assert [stream.record(110, 0) for stream in streams] == [0, 11_000]
    assert Metered(Rights(control, Caller(BOB)), meter, "a").record(110, 0) == 0
    assert [stream.record(0, 0) for stream in streams] == [11_000, 11_000]
    assert Watched.found == 3
    group: Group = (str(ALICE), "")
    holding = streams[0].holding
    assert holding is not None
    assert holding.group == group

"""The machine of a work group's member, told as dialogues."""

from __future__ import annotations

from itertools import count

from headrace._core.group_messages import (
    Broke,
    Closing,
    Connect,
    Effect,
    Event,
    GroupSettings,
    HangUp,
    Opened,
    Polled,
    Send,
    Subscribed,
    Ticked,
    Told,
    WorkReport,
    WorkReported,
)
from headrace._core.phases import Identity, Phase
from headrace._core.work_membership import WorkMembership
from headrace.errors import FencedInstanceId, HeadraceError, NetworkFailed, UnknownMemberId, UnsupportedVersion
from headrace.work_types import GivenItem, WorkChange, WorkShare

NONE: frozenset[str] = frozenset()


def given(epoch: int, *ids: str, unended: tuple[str, ...] = ()) -> tuple[GivenItem, ...]:
    return tuple(GivenItem(id, epoch, unended) for id in ids)


class Dialogue:
    """A machine, its application, and a clock."""

    def __init__(self, instance_id: str | None = None) -> None:
        numbers = count(1)
        self.machine = WorkMembership(GroupSettings("g", instance_id), lambda: f"m{next(numbers)}")
        self.now = 1_000.0

    def tell(self, event: Event) -> list[Effect]:
        return [e for e in self.machine.handle(event) if type(e).__name__ != "Notify"]

    def said(self, effects: list[Effect]) -> list[WorkReport]:
        return [e.request for e in effects if isinstance(e, Send) and isinstance(e.request, WorkReport)]

    def begin(self) -> WorkReport:
        assert self.tell(Subscribed((), None, self.now)) == [Connect(0)]
        (report,) = self.said(self.tell(Opened(self.now)))
        return report

    def told(
        self, epoch: int, share: WorkShare | None = None, *, error: HeadraceError | None = None, member: str = ""
    ) -> list[WorkReport]:
        answer = WorkReported(error, member or self.machine.member_id, epoch, 5_000, 45_000, share)
        return self.said(self.tell(Told(answer, self.now)))

    def poll(self) -> tuple[WorkChange | None, list[WorkReport]]:
        change = self.machine.poll()
        return change, self.said(self.tell(Polled(self.now)))

    def give_up(self, *items: str) -> list[Effect]:
        self.machine.give_up(items)
        return self.tell(Polled(self.now))

    def member(self, *ids: str, epoch: int = 3) -> None:
        """A member that does these."""
        self.begin()
        self.told(epoch, WorkShare(given(7, *ids)))
        self.poll()
        self.told(epoch)


def test_what_it_is_given_it_claims_at_once_and_hands_out_at_the_next_poll() -> None:
    d = Dialogue()
    join = d.begin()
    assert (join.member_id, join.epoch, join.whole, join.owned, join.lags) == ("m1", 0, True, NONE, {})
    (report,) = d.told(3, WorkShare(given(7, "x", "y"), frozenset("s")))
    assert (report.epoch, report.owned, report.lags) == (3, {"x", "y"}, None)
    assert d.machine.identity == Identity("m1", 3)
    d.told(3)
    assert d.poll() == (WorkChange(given(7, "x", "y"), standby=frozenset("s")), [])
    assert d.poll() == (None, [])


def test_what_is_revoked_is_its_own_until_it_gives_it_up() -> None:
    d = Dialogue()
    d.member("x", "y")
    assert d.told(3, WorkShare(given(7, "x"))) == []
    assert d.poll()[0] == WorkChange(revoked=frozenset("y"))
    assert d.poll() == (None, [])
    (report,) = d.said(d.give_up("y"))
    assert report.owned == {"x"}


def test_what_was_taken_back_before_the_application_saw_it_goes_by_itself() -> None:
    d = Dialogue()
    d.begin()
    d.told(3, WorkShare(given(7, "x", "y")))
    (report,) = d.told(3, WorkShare(given(7, "x")))
    assert report.owned == {"x"}
    assert d.poll()[0] == WorkChange(given(7, "x"))


def test_what_changes_while_a_heartbeat_is_under_way_is_said_behind_it() -> None:
    d = Dialogue()
    d.member("x", "y")
    d.now += 5_000
    assert d.said(d.tell(Ticked(d.now))) == [WorkReport("m1", 3)]
    d.machine.report({"s": 4}, {}, ())
    assert d.tell(Polled(d.now)) == []
    assert d.told(3) == [WorkReport("m1", 3, lags={"s": 4})]


def test_lags_tokens_and_what_was_ended_are_said_once() -> None:
    d = Dialogue()
    d.begin()
    d.told(3, WorkShare(given(7, "x", unended=("t-old",))))
    d.told(3)
    d.poll()
    d.machine.report({"s": 4}, {"x": 99}, ("t-old",))
    (report,) = d.said(d.tell(Polled(d.now)))
    assert report == WorkReport("m1", 3, False, None, {"s": 4}, {"x": 99}, ("t-old",))
    d.told(3, WorkShare(given(100, "x")))
    assert d.poll()[0] == WorkChange(raised=given(100, "x"))
    d.now += 5_000
    (report,) = d.said(d.tell(Ticked(d.now)))
    assert report == WorkReport("m1", 3)


def test_what_is_declared_anew_is_said_once_and_behind_what_is_under_way() -> None:
    d = Dialogue()
    d.member("x")
    d.machine.declare()
    assert d.said(d.tell(Polled(d.now))) == [WorkReport("m1", 3, declares=True)]
    d.machine.declare()
    assert d.tell(Polled(d.now)) == []
    assert d.told(3) == [WorkReport("m1", 3, declares=True)]
    assert d.told(3) == []


def test_what_is_declared_anew_before_the_join_is_said_by_it() -> None:
    d = Dialogue()
    d.machine.declare()
    assert d.begin().whole
    assert d.told(3, WorkShare()) == []


def test_a_new_stream_is_told_all() -> None:
    d = Dialogue()
    d.member("x")
    d.machine.report({"s": 4}, {"x": 99}, ())
    assert d.tell(Broke(NetworkFailed("away"), d.now)) == [Connect(0)]
    (report,) = d.said(d.tell(Opened(d.now)))
    assert report == WorkReport("m1", 3, True, frozenset("x"), {"s": 4}, {"x": 99}, ())


def test_without_its_stream_for_the_grace_others_may_have_its_items_instance_id_or_not() -> None:
    for instance in (None, "i"):
        d = Dialogue(instance)
        d.member("x")
        d.tell(Broke(NetworkFailed("away"), d.now))
        assert not d.machine.suspended(d.now + 3_000)
        assert d.machine.suspended(d.now + 3_001)


def test_who_is_out_says_so_first_and_then_joins_as_another_member() -> None:
    d = Dialogue()
    d.member("x", "y")
    assert d.tell(Told(WorkReported(UnknownMemberId("out"), "m1"), d.now))[0] == HangUp()
    assert d.machine.identity is None
    assert d.poll() == (WorkChange(lost=frozenset("xy")), [])
    assert d.poll() == (None, [])
    assert d.give_up("x") == []
    assert [type(e) for e in d.give_up("y")] == [Connect]
    (join,) = d.said(d.tell(Opened(d.now)))
    assert (join.member_id, join.epoch, join.owned) == ("m2", 0, NONE)
    assert d.told(0, error=UnknownMemberId("out"), member="m1") == [], "about the one before"
    assert d.machine.phase is Phase.JOINING


def test_who_has_nothing_joins_again_at_once() -> None:
    d = Dialogue()
    d.begin()
    d.told(3, WorkShare())
    effects = d.tell(Told(WorkReported(UnknownMemberId("out"), "m1"), d.now))
    assert [type(e) for e in effects] == [HangUp, Connect]


def test_another_process_with_its_name_stops_it() -> None:
    d = Dialogue("i")
    d.member("x")
    d.tell(Told(WorkReported(FencedInstanceId("taken"), "m1"), d.now))
    assert d.machine.phase is Phase.FAILED
    assert d.poll()[0] == WorkChange(lost=frozenset("x"))
    assert isinstance(d.machine.take_failure(d.now), FencedInstanceId)


def test_an_item_that_is_given_up_without_being_revoked_comes_again() -> None:
    d = Dialogue()
    d.member("x")
    (report,) = d.said(d.give_up("x"))
    assert report.owned == NONE
    (report,) = d.told(3, WorkShare(given(7, "x")))
    assert report.owned == {"x"}
    assert d.poll()[0] == WorkChange(given(7, "x"))


def test_a_cluster_that_has_just_started_is_given_a_moment_to_know_its_level() -> None:
    d = Dialogue()
    d.begin()
    d.now += 3_000
    too_low = WorkReported(UnsupportedVersion("too low"), "m1")
    assert [type(e) for e in d.tell(Told(too_low, d.now))] == [Connect]
    d.tell(Opened(d.now))
    d.now += 1
    d.tell(Told(too_low, d.now))
    assert isinstance(d.machine.failure, UnsupportedVersion)


def test_closing_says_good_bye_and_waits_for_the_answer() -> None:
    d = Dialogue()
    d.member("x")
    assert d.said(d.tell(Closing(d.now))) == [WorkReport("m1", -1)]
    assert d.machine.phase is Phase.LEAVING
    assert d.tell(Told(WorkReported(None, "m1", -1), d.now)) == [HangUp()]
    assert d.machine.phase is Phase.LEFT

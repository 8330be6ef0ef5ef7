"""The classic machine, told as dialogues: what happens, and what is done then."""

from __future__ import annotations

from dataclasses import replace

import pytest

from headrace import TopicPartition
from headrace._core.group_messages import (
    Beat,
    BeatAnswered,
    Broke,
    Closing,
    Compute,
    Computed,
    Connect,
    Did,
    Effect,
    Event,
    GroupSettings,
    HangUp,
    Join,
    Joined,
    Kind,
    Leave,
    Left,
    LookedUp,
    LookUp,
    NotComputed,
    NotLookedUp,
    Opened,
    Polled,
    Send,
    Subscribed,
    Sync,
    Synced,
    Ticked,
    Told,
    TopicsSeen,
    Warn,
)
from headrace._core.membership_classic import ClassicMembership
from headrace._core.phases import REJOIN_GRACE_MS, SILENCE_MS, Phase
from headrace.errors import (
    CoordinatorLoading,
    FencedInstanceId,
    IllegalGeneration,
    InvalidSessionTimeout,
    NetworkFailed,
    NotCoordinator,
    RebalanceInProgress,
    Rejected,
    UnknownMemberId,
)
from headrace.records import Committed
from headrace_common.core.assignors import MemberSubscription

EAGER = GroupSettings(
    "g", assignors=("range", "cooperative-sticky"), cooperative_names=frozenset({"cooperative-sticky"})
)
COOPERATIVE = GroupSettings(
    "g", assignors=("cooperative-sticky",), cooperative=True, cooperative_names=frozenset({"cooperative-sticky"})
)
T = tuple(TopicPartition("t", n) for n in range(6))
ME = {"m": MemberSubscription(("t",))}


class Dialogue:
    """A machine, an application that does its jobs when told to, and a clock."""

    def __init__(self, settings: GroupSettings) -> None:
        self.machine = ClassicMembership(settings)
        self.now = 1_000.0

    def tell(self, event: Event) -> list[Effect]:
        return [e for e in self.machine.handle(event) if type(e).__name__ != "Notify"]

    def told(self, answer: object) -> list[Effect]:
        return self.tell(Told(answer, self.now))  # any answer

    def tick(self, ms: float) -> list[Effect]:
        self.now += ms
        return self.tell(Ticked(self.now))

    def work(self) -> list[tuple[Kind, set[int]]]:
        """The application does all its jobs."""
        done = []
        while (job := self.machine.begin()) is not None:
            done.append((job.kind, {tp.partition for tp in job.partitions}))
            self.after = self.tell(Did(job, self.now))
        return done

    def subscribe(self, *topics: str, pattern: str | None = None) -> list[Effect]:
        return self.tell(Subscribed(topics or ("t",), pattern, self.now))

    def open(self) -> list[Effect]:
        return self.tell(Opened(self.now))

    def joined(self, generation: int, *, leads: bool = False, protocol: str | None = None) -> list[Effect]:
        name = protocol or self.machine.settings.assignors[0]
        members = ME if leads else {}
        return self.told(Joined(None, "m", generation, name, "m" if leads else "other", members))

    def synced(self, generation: int, *partitions: int) -> list[Effect]:
        effects = self.told(Synced(None, generation, frozenset(T[p] for p in partitions)))
        return effects + self.look_up(effects)

    def look_up(self, effects: list[Effect]) -> list[Effect]:
        for effect in effects:
            if isinstance(effect, LookUp):
                return self.tell(LookedUp(effect.version, dict.fromkeys(effect.partitions), self.now))
        return []

    def member(self, *partitions: int, generation: int = 1) -> None:
        """Become one that holds these."""
        self.subscribe()
        self.open()
        self.joined(generation)
        self.synced(generation, *partitions)
        assert self.work() == ([(Kind.ASSIGN, set(partitions))] if partitions else [])

    @property
    def held(self) -> set[int]:
        return {tp.partition for tp in self.machine.holdings.held}


def sent(effects: list[Effect]) -> list[object]:
    return [effect.request for effect in effects if isinstance(effect, Send)]


def test_a_member_joins_syncs_and_is_told_what_to_read() -> None:
    d = Dialogue(EAGER)
    assert d.subscribe() == [Connect(0)]
    [join] = sent(d.open())
    assert isinstance(join, Join)
    assert (join.member_id, join.topics, join.held, join.generation) == ("", ("t",), frozenset(), -1)
    assert sent(d.joined(1)) == [Sync("m", 1)]
    [look_up] = d.told(Synced(None, 1, frozenset(T[:2])))
    assert isinstance(look_up, LookUp)
    assert look_up.partitions == frozenset(T[:2])
    assert d.machine.begin() is None, "not before it is known where they start"
    d.tell(LookedUp(look_up.version, {T[0]: Committed(7, 3), T[1]: None}, d.now))
    job = d.machine.begin()
    assert job is not None
    assert (job.kind, job.offsets) == (Kind.ASSIGN, {T[0]: Committed(7, 3), T[1]: None})
    d.tell(Did(job, d.now))
    assert (d.held, d.machine.phase, d.machine.rebalancing) == ({0, 1}, Phase.MEMBER, False)


def test_the_leader_computes_and_sends_the_assignment() -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    assert d.joined(1, leads=True) == [Compute(1, "range", ME)]
    assert d.tell(Computed(9, {}, {}, d.now)) == [], "of another generation"
    shares = {"m": frozenset(T)}
    assert sent(d.tell(Computed(1, shares, {"t": 6}, d.now))) == [Sync("m", 1, shares, {"t": 6})]


def test_a_leader_that_may_skip_sends_none() -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    assert sent(d.told(Joined(None, "m", 3, "range", "m", ME, skip_assignment=True))) == [Sync("m", 3)]


def test_eager_lets_go_of_everything_before_it_joins_again() -> None:
    d = Dialogue(EAGER)
    d.member(0, 1)
    assert d.told(BeatAnswered(RebalanceInProgress())) == []
    assert d.machine.phase is Phase.PREPARING
    assert d.told(BeatAnswered(RebalanceInProgress())) == [], "told twice"
    assert d.work() == [(Kind.REVOKE, {0, 1})]
    [join] = sent(d.after)
    assert isinstance(join, Join)
    assert (join.member_id, join.held, join.assigned, join.generation) == ("m", frozenset(), frozenset(T[:2]), 1)
    d.joined(2)
    d.synced(2, 1, 2)
    assert d.work() == [(Kind.ASSIGN, {1, 2})]


def test_while_the_application_is_busy_an_eager_member_only_beats() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    d.told(BeatAnswered(RebalanceInProgress()))
    assert sent(d.tick(3_000)) == [Beat("m", 1)]
    d.told(BeatAnswered(RebalanceInProgress()))
    assert sent(d.tick(3_000)) == [Beat("m", 1)]


def test_cooperative_keeps_gives_up_and_joins_once_more() -> None:
    d = Dialogue(COOPERATIVE)
    d.member(0, 1, 2)
    [join] = sent(d.told(BeatAnswered(RebalanceInProgress())))
    assert isinstance(join, Join)
    assert join.held == frozenset(T[:3])
    assert d.work() == [], "nothing is interrupted"
    d.joined(2)
    assert sent(d.synced(2, 0, 1)) == [], "first it gives up what is taken away"
    assert d.work() == [(Kind.REVOKE, {2})]
    [again] = sent(d.after)
    assert isinstance(again, Join)
    assert (again.held, again.generation) == (frozenset(T[:2]), 2)
    d.joined(3)
    assert sent(d.synced(3, 0, 1)) == []
    assert (d.work(), d.held) == ([], {0, 1})


def test_what_was_promised_and_never_taken_is_given_up_by_joining_again() -> None:
    d = Dialogue(COOPERATIVE)
    d.subscribe()
    d.open()
    d.joined(1)
    d.synced(1, 0, 1)  # the application is busy
    [join] = sent(d.told(BeatAnswered(RebalanceInProgress())))
    assert isinstance(join, Join)
    assert join.held == frozenset(T[:2]), "it may take them any moment, so nobody else may have them"
    d.joined(2)
    [again] = sent(d.synced(2, 0))
    assert isinstance(again, Join)
    assert again.held == frozenset(T[:1])
    d.joined(3)
    d.synced(3, 0)
    assert d.work() == [(Kind.ASSIGN, {0})]


def test_an_assignment_of_before_is_nothing() -> None:
    d = Dialogue(COOPERATIVE)
    d.member(0)
    d.told(BeatAnswered(RebalanceInProgress()))
    assert d.told(Synced(None, 1, frozenset(T))) == []
    assert d.told(Joined(None, "m", 2, "cooperative-sticky", "x")) != []
    assert d.told(Synced(None, 1, frozenset(T))) == []
    assert d.work() == []


def test_who_is_not_known_any_more_loses_all_and_joins_anew() -> None:
    d = Dialogue(EAGER)
    d.member(0, 1)
    effects = d.told(BeatAnswered(UnknownMemberId("no")))
    assert HangUp() in effects
    assert any(isinstance(effect, Warn) for effect in effects)
    assert d.machine.identity is None, "no commit for what belongs to others"
    assert d.tick(60_000) == [], "until the application was told"
    assert d.work() == [(Kind.LOSE, {0, 1})]
    assert isinstance(d.after[0], Connect)
    [join] = sent(d.open())
    assert isinstance(join, Join)
    assert (join.member_id, join.assigned) == ("", frozenset())


def test_who_missed_a_generation_keeps_its_name() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    d.tick(3_000)
    d.told(BeatAnswered(IllegalGeneration()))
    d.work()
    [join] = sent(d.open())
    assert isinstance(join, Join)
    assert (join.member_id, join.generation) == ("m", -1)


def joined_again() -> Dialogue:
    """Its last heartbeat, of generation 1, is not answered; it has joined generation 2."""
    d = Dialogue(COOPERATIVE)
    d.member(0)
    d.tick(3_000)
    d.told(BeatAnswered(RebalanceInProgress()))
    d.tick(3_000)
    d.joined(2)
    return d


def test_a_heartbeat_of_the_generation_before_says_nothing() -> None:
    d = joined_again()
    assert d.told(BeatAnswered(IllegalGeneration())) == []
    d.synced(2, 0)
    assert (d.machine.phase, d.held) == (Phase.MEMBER, {0})


def test_a_late_refusal_of_a_heartbeat_names_the_generation_that_the_member_is_in_by_now() -> None:
    d = joined_again()
    d.synced(2, 0)
    assert sent(d.tick(3_000)) == [Beat("m", 2)]
    assert d.told(BeatAnswered(IllegalGeneration(), 2)) == []
    assert (d.machine.phase, d.held) == (Phase.MEMBER, {0})
    d.told(BeatAnswered(IllegalGeneration(), 3))
    assert d.machine.phase is not Phase.MEMBER, "it has missed that one"


def test_a_revocation_under_way_becomes_a_loss() -> None:
    d = Dialogue(EAGER)
    d.member(0, 1)
    d.told(BeatAnswered(RebalanceInProgress()))
    job = d.machine.begin()
    assert job is not None
    assert job.kind is Kind.REVOKE
    d.told(BeatAnswered(UnknownMemberId()))
    assert d.machine.begin() is None, "one at a time"
    d.tell(Did(job, d.now))
    assert d.held == set()
    assert d.machine.phase is Phase.JOINING


@pytest.mark.parametrize("error", [NotCoordinator(), CoordinatorLoading(), NetworkFailed()])
def test_a_coordinator_that_cannot_answer_is_looked_for_again(error: Exception) -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    assert d.told(Joined(error)) == [Connect(0)]  # they are errors of ours
    d.open()
    assert d.told(Joined(error)) == [Connect(100)]  # they are errors of ours
    assert d.tell(Broke(NetworkFailed("down"), d.now)) == [Connect(200)]
    d.now += 60_000
    told = d.machine.take_failure(d.now)
    assert "group 'g' has not taken this member for 60 s: down" in str(told)
    assert d.machine.take_failure(d.now) is None, "once in a while"


def test_a_stream_that_breaks_is_opened_again_and_nothing_happened() -> None:
    d = Dialogue(EAGER)
    d.member(0, 1)
    assert d.tell(Broke(NetworkFailed(), d.now)) == [Connect(0)]
    assert not d.machine.suspended(d.now + REJOIN_GRACE_MS)
    assert d.machine.suspended(d.now + REJOIN_GRACE_MS + 1)
    assert sent(d.open()) == [Beat("m", 1)]
    assert d.machine.suspended(d.now + REJOIN_GRACE_MS + 1), "not before it was answered"
    d.told(BeatAnswered(None, 1))
    assert not d.machine.suspended(d.now + REJOIN_GRACE_MS + 1)
    assert (d.work(), d.held) == ([], {0, 1})


def test_static_members_are_patient_for_their_session() -> None:
    d = Dialogue(replace(EAGER, instance_id="one"))
    d.member(0)
    d.tell(Broke(NetworkFailed(), d.now))
    assert not d.machine.suspended(d.now + 45_000)
    assert d.machine.suspended(d.now + 45_001)


def test_silence_is_a_broken_stream() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    [beat] = sent(d.tick(3_000))
    assert beat == Beat("m", 1)
    assert d.machine.due_ms() == d.now + SILENCE_MS
    assert d.tick(SILENCE_MS - 1) == []
    assert d.machine.suspended(d.now), "others may have it by now, whatever the stream looks like"
    assert d.tick(1) == [Connect(0)]


def test_a_stream_that_breaks_while_joining_joins_again() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    d.told(BeatAnswered(RebalanceInProgress()))
    d.work()
    d.tell(Broke(NetworkFailed(), d.now))
    beat, join = sent(d.open())
    assert isinstance(beat, Beat)
    assert isinstance(join, Join)
    d.joined(2)
    d.tell(Broke(NetworkFailed(), d.now))
    assert [type(request) for request in sent(d.open())] == [Beat, Join], "a sync that was lost is a join"


def test_a_join_that_nobody_answers_is_made_again() -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    d.now = d.machine.last_poll_ms = 300_000
    assert d.machine.due_ms() == 306_000
    assert d.tick(5_999) == []
    assert d.tick(1) == [Connect(0)]


def test_who_is_not_polled_leaves_and_the_next_poll_joins_anew() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    d.machine.last_poll_ms = d.now
    effects = d.tick(300_000)
    assert isinstance(effects[0], Warn)
    assert [type(request) for request in sent(effects)] == [Leave]
    assert effects[-1] == HangUp()
    assert (d.machine.phase, d.machine.due_ms()) == (Phase.AWAY, None)
    d.tell(Polled(d.now))
    assert d.work() == [(Kind.LOSE, {0})]
    assert isinstance(d.after[0], Connect)
    assert d.machine.phase is Phase.JOINING


def test_one_that_holds_nothing_joins_at_the_poll() -> None:
    d = Dialogue(EAGER)
    d.member()
    d.machine.last_poll_ms = d.now
    d.tick(300_000)
    assert isinstance(d.tell(Polled(d.now))[0], Connect)


@pytest.mark.parametrize("error", [FencedInstanceId("taken"), InvalidSessionTimeout("too short")])
def test_what_only_the_application_can_mend_is_told_each_time(error: Exception) -> None:
    d = Dialogue(EAGER)
    d.member(0)
    d.told(BeatAnswered(error))  # they are errors of ours
    assert d.work() == [(Kind.LOSE, {0})]
    assert d.machine.take_failure(d.now) is error
    assert d.machine.take_failure(d.now) is error
    assert d.subscribe() == [Connect(0)], "subscribing again begins anew"
    assert d.machine.take_failure(d.now) is None


def test_an_assignor_that_nobody_here_knows_is_told() -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    d.joined(1, protocol="mystery")
    assert "mystery" in str(d.machine.take_failure(d.now))


def test_an_assignor_that_fails_is_told_and_metadata_that_fails_is_asked_again() -> None:
    for error, fails in ((Rejected("raised"), True), (NetworkFailed(), False)):
        d = Dialogue(EAGER)
        d.subscribe()
        d.open()
        d.joined(1, leads=True)
        effects = d.tell(NotComputed(1, error, d.now))
        assert (d.machine.phase is Phase.FAILED) is fails
        assert (effects == [Connect(0)]) is not fails


def test_offsets_that_cannot_be_had_are_told_and_asked_for_again() -> None:
    d = Dialogue(EAGER)
    d.subscribe()
    d.open()
    d.joined(1)
    [look_up] = d.told(Synced(None, 1, frozenset(T[:1])))
    assert isinstance(look_up, LookUp)
    assert d.tell(NotLookedUp(look_up.version, NetworkFailed("far away"), d.now)) == []
    assert "far away" in str(d.machine.take_failure(d.now))
    [again] = [e for e in d.tick(3_000) if isinstance(e, LookUp)]
    assert again == look_up


def test_more_partitions_make_the_leader_join_again_and_only_it() -> None:
    for leads in (True, False):
        d = Dialogue(COOPERATIVE)
        d.subscribe()
        d.open()
        d.joined(1, leads=leads)
        d.tell(Computed(1, {"m": frozenset(T)}, {"t": 6}, d.now))
        d.synced(1, *range(6))
        d.work()
        assert sent(d.tell(TopicsSeen({"t": 6}, d.now))) == []
        assert bool(sent(d.tell(TopicsSeen({"t": 7}, d.now)))) is leads


def test_a_static_leader_that_was_started_again_knows_what_was_decided_from() -> None:
    """It skips the assignment; partitions that were added since, even while it was away, are its business."""
    for counts, again in (({"t": 6}, False), ({"t": 5}, True), ({"t": 6, "gone": 1}, True)):
        d = Dialogue(replace(EAGER, instance_id="i"))
        d.subscribe()
        d.open()
        d.told(Joined(None, "m", 3, "range", "m", ME, skip_assignment=True))
        d.look_up(d.told(Synced(None, 3, frozenset(T[:1]), counts)))
        d.work()
        assert d.machine.watched == tuple(sorted({"t", *counts}))
        d.tell(TopicsSeen({"t": 6}, d.now))
        assert (d.machine.phase is not Phase.MEMBER) is again


def test_a_pattern_is_what_matches_whole_names() -> None:
    d = Dialogue(COOPERATIVE)
    d.tell(TopicsSeen({"flights-eu": 1, "no-flights-eu": 1}, d.now))
    d.tell(Subscribed((), "flights-.*", d.now))
    [join] = sent(d.open())
    assert isinstance(join, Join)
    assert join.topics == ("flights-eu",)
    d.joined(1)
    d.synced(1)
    [again] = sent(d.tell(TopicsSeen({"flights-eu": 1, "flights-us": 1}, d.now)))
    assert isinstance(again, Join)
    assert again.topics == ("flights-eu", "flights-us")


def test_another_subscription_while_joining_is_joined_with_afterwards() -> None:
    d = Dialogue(COOPERATIVE)
    d.subscribe()
    d.open()
    assert d.subscribe("u") == []
    d.joined(1)
    [join] = sent(d.synced(1))
    assert isinstance(join, Join)
    assert join.topics == ("u",)


def test_what_is_not_subscribed_to_any_more_goes_before_the_join() -> None:
    d = Dialogue(COOPERATIVE)
    d.member(0, 1)
    assert d.subscribe("u") == []
    assert d.work() == [(Kind.REVOKE, {0, 1})]
    assert isinstance(sent(d.after)[0], Join)


def test_closing_says_good_bye_and_waits_for_the_answer() -> None:
    d = Dialogue(EAGER)
    d.member(0)
    assert sent(d.tell(Closing(d.now))) == [Leave("m", "the member was closed")]
    assert d.machine.phase is Phase.LEAVING
    assert d.told(Left(None)) == [HangUp()]
    assert d.machine.phase is Phase.LEFT


def test_a_static_member_only_hangs_up() -> None:
    d = Dialogue(replace(EAGER, instance_id="one"))
    d.member(0)
    assert d.tell(Closing(d.now)) == [HangUp()]

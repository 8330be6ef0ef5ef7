"""The machine of the server-side protocol, told as dialogues."""

from __future__ import annotations

from dataclasses import replace

from headrace import TopicPartition
from headrace._core.group_messages import (
    Broke,
    Closing,
    Connect,
    Did,
    Effect,
    Event,
    GroupSettings,
    HangUp,
    Kind,
    LookedUp,
    LookUp,
    Opened,
    Report,
    Reported,
    Send,
    Subscribed,
    Ticked,
    Told,
)
from headrace._core.membership_consumer import ConsumerMembership
from headrace._core.phases import Identity, Phase
from headrace.errors import (
    FencedMemberEpoch,
    HeadraceError,
    InvalidRegularExpression,
    NetworkFailed,
    UnreleasedInstanceId,
)

SETTINGS = GroupSettings("g")
T = tuple(TopicPartition("t", n) for n in range(6))
NOTHING: frozenset[TopicPartition] = frozenset()


class Dialogue:
    """A machine, an application that does its jobs when told to, and a clock."""

    def __init__(self, settings: GroupSettings = SETTINGS) -> None:
        self.machine = ConsumerMembership(settings, "me")
        self.now = 1_000.0

    def tell(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event)
        for effect in effects:
            if isinstance(effect, LookUp):
                self.machine.handle(LookedUp(effect.version, dict.fromkeys(effect.partitions), self.now))
        return [e for e in effects if type(e).__name__ not in ("Notify", "LookUp")]

    def told(self, epoch: int, *partitions: int, error: HeadraceError | None = None) -> list[Report]:
        """The coordinator says this; what is answered."""
        assignment = frozenset(T[p] for p in partitions)
        return sent(self.tell(Told(Reported(error, "me", epoch, 5_000, assignment), self.now)))

    def quiet(self, epoch: int) -> list[Report]:
        """A heartbeat is answered, nothing is new."""
        return sent(self.tell(Told(Reported(None, "me", epoch, 5_000, None), self.now)))

    def tick(self, ms: float) -> list[Effect]:
        self.now += ms
        return self.tell(Ticked(self.now))

    def work(self) -> list[tuple[Kind, set[int]]]:
        done = []
        self.said: list[Report] = []
        while (job := self.machine.begin()) is not None:
            done.append((job.kind, {tp.partition for tp in job.partitions}))
            self.after = self.tell(Did(job, self.now))
            self.said += sent(self.after)
        return done

    def open(self) -> list[Report]:
        return sent(self.tell(Opened(self.now)))

    def member(self, *partitions: int) -> None:
        self.tell(Subscribed(("t",), None, self.now))
        self.open()
        self.told(1, *partitions)
        self.work()
        self.quiet(1)


def sent(effects: list[Effect]) -> list[Report]:
    return [effect.request for effect in effects if isinstance(effect, Send) and isinstance(effect.request, Report)]


def test_a_member_joins_with_epoch_0_and_says_what_it_took() -> None:
    d = Dialogue()
    assert d.tell(Subscribed(("t",), None, d.now)) == [Connect(0)]
    assert d.open() == [Report("me", 0, True, ("t",), None, NOTHING)]
    assert d.machine.identity is None
    assert d.told(3, 0, 1) == []
    assert d.machine.identity == Identity("me", 3)
    assert d.work() == [(Kind.ASSIGN, {0, 1})]
    assert d.said == [Report("me", 3, owned=frozenset(T[:2]))]
    assert d.quiet(3) == []
    assert not d.machine.rebalancing


def test_the_coordinator_says_how_often_to_beat() -> None:
    d = Dialogue()
    d.member(0)
    assert d.machine.due_ms() == d.now + 5_000
    assert sent(d.tick(5_000)) == [Report("me", 1)], "nothing has changed"
    d.tell(Told(Reported(None, "me", 1, 1_000, None), d.now))
    assert d.machine.due_ms() == d.now + 1_000


def test_what_must_go_is_given_up_and_said_at_once_and_the_rest_goes_on() -> None:
    d = Dialogue()
    d.member(0, 1, 2)
    assert d.told(1, 0, 1) == [], "not before the application has let go"
    assert d.machine.rebalancing
    assert d.work() == [(Kind.REVOKE, {2})]
    assert d.said == [Report("me", 1, owned=frozenset(T[:2]))]
    assert d.told(2, 0, 1, 5) == []
    assert d.work() == [(Kind.ASSIGN, {5})]


def test_what_is_new_follows_the_heartbeat_that_is_under_way() -> None:
    d = Dialogue()
    d.member(0, 1)
    [beat] = sent(d.tick(5_000))
    assert beat.owned is None
    d.tell(Subscribed(("t", "u"), None, d.now))
    assert d.quiet(1) == [Report("me", 1, topics=("t", "u"))]


def test_a_promise_that_was_taken_back_is_said_not_to_be_held() -> None:
    d = Dialogue()
    d.member(0)
    d.told(2, 0, 1)  # the application is busy
    assert d.told(2, 0) == [Report("me", 2, owned=frozenset(T[:1]))]
    assert d.work() == []


def test_an_assignment_that_changes_while_the_application_takes_it() -> None:
    d = Dialogue()
    d.member()
    d.told(2, 0, 1)
    job = d.machine.begin()
    assert job is not None
    assert d.told(2, 1) == []
    d.tell(Did(job, d.now))
    assert d.work() == [(Kind.REVOKE, {0})]


def test_a_partition_that_comes_back_is_looked_up_anew() -> None:
    d = Dialogue()
    d.member(0)
    d.told(2)
    job = d.machine.begin()
    assert job is not None
    d.told(3, 0)
    d.tell(Did(job, d.now))
    assert d.work() == [(Kind.ASSIGN, {0})]


def test_who_is_fenced_loses_all_and_joins_with_the_same_name() -> None:
    d = Dialogue()
    d.member(0, 1)
    d.told(1, error=FencedMemberEpoch("old"))
    assert d.machine.identity is None
    assert d.open() == [], "not before the application was told"
    assert d.work() == [(Kind.LOSE, {0, 1})]
    assert d.after == [Connect(100)]
    assert d.open() == [Report("me", 0, True, ("t",), None, NOTHING)]


def test_a_new_stream_is_told_everything() -> None:
    d = Dialogue()
    d.member(0, 1)
    assert d.tell(Broke(NetworkFailed(), d.now)) == [Connect(0)]
    assert d.open() == [Report("me", 1, True, ("t",), None, frozenset(T[:2]))]
    assert d.quiet(1) == []
    assert d.work() == []


def test_one_that_was_stopped_for_a_session_hands_nothing_out_before_it_was_confirmed() -> None:
    d = Dialogue()
    d.member(0)
    d.tell(Told(Reported(None, "me", 1, 5_000, None, 20_000), d.now))
    d.now += 20_000
    assert not d.machine.suspended(d.now)
    d.now += 1
    assert d.machine.suspended(d.now), "nobody has noticed anything yet: not a heartbeat has left since"
    assert sent(d.tick(0)) == [Report("me", 1)]
    assert d.machine.suspended(d.now)
    d.quiet(1)
    assert not d.machine.suspended(d.now)


def test_a_static_name_that_is_not_free_is_asked_for_again() -> None:
    d = Dialogue(replace(SETTINGS, instance_id="one"))
    d.tell(Subscribed(("t",), None, d.now))
    d.open()
    waits = []
    for _ in range(4):
        [connect] = d.tell(Told(Reported(UnreleasedInstanceId()), d.now))
        assert isinstance(connect, Connect)
        waits.append(connect.after_ms)
        d.open()
    assert waits == [0, 100, 200, 250]
    assert d.machine.take_failure(d.now + 60_000) is not None


def test_a_pattern_is_the_coordinators_business() -> None:
    d = Dialogue()
    d.tell(Subscribed((), "fl.*", d.now))
    assert d.open() == [Report("me", 0, True, (), "fl.*", NOTHING)]
    d.told(0, error=InvalidRegularExpression("no"))
    assert isinstance(d.machine.take_failure(d.now), InvalidRegularExpression)


def test_leaving_says_so_and_static_members_that_they_will_be_back() -> None:
    for settings, epoch in ((SETTINGS, -1), (replace(SETTINGS, instance_id="one"), -2)):
        d = Dialogue(settings)
        d.member(0)
        assert sent(d.tell(Closing(d.now))) == [Report("me", epoch)]
        assert d.quiet(1) == [], "a heartbeat of before is answered"
        assert d.machine.phase is Phase.LEAVING
        assert d.tell(Told(Reported(None, "me", epoch), d.now)) == [HangUp()]
        assert d.machine.phase is Phase.LEFT


def test_a_stream_that_breaks_ends_the_good_bye() -> None:
    d = Dialogue()
    d.member(0)
    d.tell(Closing(d.now))
    d.tell(Broke(NetworkFailed(), d.now))
    assert d.machine.phase is Phase.LEFT

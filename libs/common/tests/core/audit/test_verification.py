"""Whatever is changed, removed, added or moved is found; what was only repeated or mixed is not."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from libs.common.tests.kit import audit as kit

from headrace_common.core.audit import verification
from headrace_common.core.audit.canonical import write_line
from headrace_common.core.audit.chain import Start, digest_of
from headrace_common.core.audit.journal import SEAL_MS, Happened, Stopped, Ticked
from headrace_common.core.audit.seals import Seal, message_of, read_seal, write_seal
from headrace_common.core.audit.verification import Announced, Found, Verdict, verify
from headrace_common.core.errors import Rejected

ONE, TWO, OTHER = Start(kit.BROKER, "one"), Start(kit.BROKER, "two"), Start(kit.ADMIN, "one")
STARTS = kit.announce(ONE, TWO, OTHER)


def written(start: Start, *parts: int, at_ms: int = kit.NOW_MS, ends: bool = True) -> list[bytes]:
    """A start with so many events before each seal, a minute between the parts; its beginning is one more."""
    journal = kit.journal_of(start)
    effects = journal.begin(kit.public_key_of(start), at_ms, 0)
    now_ms = 0
    for at, part in enumerate(parts, 1):
        for n in range(part):
            effects += journal.handle(Happened(kit.event(name=f"t{n}", time_ms=at_ms + now_ms), now_ms))
        now_ms += SEAL_MS
        if at < len(parts) or not ends:
            effects += journal.handle(Ticked(at_ms + now_ms, now_ms))
    return kit.lines_of([*effects, *(journal.handle(Stopped(at_ms + now_ms)) if ends else [])])


LINES_ONE = written(ONE, 3, 2, 4)
LINES_TWO = written(TWO, 2, 3, at_ms=kit.NOW_MS + 10 * SEAL_MS)
LINES_OTHER = written(OTHER, 1, 1)
WORLD = [*LINES_ONE, *LINES_TWO, *LINES_OTHER]
"""Two starts of a node, one of another: all ended in order, and the last seal of each has events."""

COUNTED = {
    start: announced._replace(events=n) for (start, announced), n in zip(STARTS.items(), (10, 6, 3), strict=True)
}
"""As the nodes say themselves."""

positions = st.integers(0, len(WORLD) - 1)


def look(lines: list[bytes], starts: Mapping[Start, Announced] = STARTS, since_ms: int | None = None) -> Verdict:
    return verify(lines, starts, kit.check, since_ms)


def found(verdict: Verdict) -> list[Found]:
    return [finding.found for finding in verdict.findings]


def fields_at(position: int) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(WORLD[position])
    return fields


def forge(lines: list[bytes], position: int, **changes: Any) -> list[bytes]:
    """Change an event, and make all events of its start behind it anew, so that they fit."""
    fields = json.loads(lines[position])
    new = [*lines]
    new[position] = write_line({**fields, **changes})
    head = digest_of(new[position])
    for at in range(position + 1, len(lines)):
        later = json.loads(lines[at])
        if (later["node"], later["start"]) == (fields["node"], fields["start"]) and "prev" in later:
            new[at] = write_line({**later, "prev": head})
            head = digest_of(new[at])
    return new


EVENTS = [n for n in range(len(WORLD)) if "prev" in fields_at(n)]
SEALS = [n for n in range(len(WORLD)) if "signature" in fields_at(n)]


# --- what is right ---------------------------------------------------------------------------------------------


def test_what_was_written_is_proven() -> None:
    verdict = look(WORLD)
    assert verdict.findings == ()
    assert (verdict.proven, verdict.changed, verdict.repeats) == (True, False, 0)
    assert (verdict.events, verdict.seals) == (len(EVENTS), len(SEALS)) == (19, 7)


@given(st.randoms(use_true_random=False))
def test_lines_of_several_nodes_may_be_mixed(random: Any) -> None:
    queues = [list(reversed(lines)) for lines in ([*LINES_ONE, *LINES_TWO], LINES_OTHER)]
    mixed = []
    while any(queues):
        mixed.append(random.choice([queue for queue in queues if queue]).pop())
    assert look(mixed).proven


@given(positions, st.integers(1, len(WORLD)))
def test_a_line_that_comes_again_means_nothing(position: int, later: int) -> None:
    at = min(position + later, len(WORLD))
    verdict = look([*WORLD[:at], WORLD[position], *WORLD[at:]])
    assert (verdict.findings, verdict.repeats) == ((), 1)


# --- what is not -----------------------------------------------------------------------------------------------


@given(positions, st.data())
@settings(max_examples=100)
def test_a_changed_byte_is_found(position: int, data: st.DataObject) -> None:
    line = WORLD[position]
    at, by = data.draw(st.integers(0, len(line) - 1)), data.draw(st.integers(1, 255))
    other = line[:at] + bytes([line[at] ^ by]) + line[at + 1 :]
    verdict = look([*WORLD[:position], other, *WORLD[position + 1 :]])
    assert verdict.changed


@given(st.sampled_from(EVENTS), st.data())
@settings(max_examples=100)
def test_a_changed_event_is_found_even_if_all_behind_it_are_made_to_fit(position: int, data: st.DataObject) -> None:
    fields = fields_at(position)
    name = data.draw(st.sampled_from(sorted(fields)))
    value = data.draw(st.none() | st.integers(0, 9) | st.text(max_size=3) | st.just({"a": 1}))
    if fields[name] == value and type(fields[name]) is type(value):
        return
    changed = write_line({**fields, name: value})
    assert look([*WORLD[:position], changed, *WORLD[position + 1 :]]).changed
    assert look(forge(WORLD, position, **{name: value})).changed


@given(positions)
def test_a_line_that_was_removed_is_found(position: int) -> None:
    verdict = look([*WORLD[:position], *WORLD[position + 1 :]])
    last_of_its_start = WORLD[position] in {LINES_ONE[-1], LINES_TWO[-1], LINES_OTHER[-1]}
    assert not verdict.proven
    assert verdict.changed is not last_of_its_start


def test_it_says_which_events_are_missing() -> None:
    for last in (2, 3):
        lines = [*LINES_ONE[:2], *LINES_ONE[last + 1 :]]
        assert look(lines, kit.announce(ONE)).findings == ((Found.MISSING, ONE, 2, last),)


@pytest.mark.parametrize("position", EVENTS[:-1])
def test_a_removed_event_is_found_even_if_all_behind_it_are_made_to_fit(position: int) -> None:
    fields, following = fields_at(position), position + 1
    lines = [*WORLD[:position], *WORLD[following:]]
    behind = [n for n in range(position, len(lines)) if json.loads(lines[n]).get("start") == fields["start"]]
    behind = [n for n in behind if json.loads(lines[n])["node"] == fields["node"] and "prev" in json.loads(lines[n])]
    head = fields["prev"]
    for n in behind:
        later = json.loads(lines[n])
        lines[n] = write_line({**later, "seq": later["seq"] - 1, "prev": head})
        head = digest_of(lines[n])
    assert look(lines).changed


@given(st.sampled_from(EVENTS), positions, st.booleans())
def test_an_event_that_was_added_is_found(model: int, position: int, next_seq: bool) -> None:
    fields = fields_at(model)
    added = write_line({**fields, "seq": fields["seq"] + next_seq, "source": "10.6.6.6"})
    verdict = look([*WORLD[:position], added, *WORLD[position:]])
    assert verdict.changed


@pytest.mark.parametrize("first", range(len(WORLD)))
def test_lines_of_a_start_that_change_places_are_found(first: int) -> None:
    for second in range(first + 1, len(WORLD)):
        one, other = fields_at(first), fields_at(second)
        if (one["node"], one["start"]) == (other["node"], other["start"]):
            lines = [*WORLD]
            lines[first], lines[second] = WORLD[second], WORLD[first]
            assert look(lines).changed, (first, second)


@given(st.lists(st.tuples(st.sampled_from(["drop", "swap", "repeat", "forge"]), positions, positions), max_size=5))
@settings(max_examples=100)
def test_what_is_proven_has_exactly_the_events_that_were_written(steps: list[tuple[str, int, int]]) -> None:
    lines = [*WORLD]
    for step, first, second in steps:
        one, other = first % len(lines), second % len(lines)
        if step == "drop":
            del lines[one]
        elif step == "swap":
            lines[one], lines[other] = lines[other], lines[one]
        elif step == "repeat":
            lines.insert(other, lines[one])
        elif "prev" in json.loads(lines[one]):
            lines = forge(lines, one, source="10.6.6.6")
    if look(lines, COUNTED).proven:
        assert set(lines) == set(WORLD)
        for start in STARTS:
            of_start = [line for line in dict.fromkeys(lines) if read(line) == start]
            assert of_start == [line for line in WORLD if read(line) == start]


def read(line: bytes) -> Start:
    return verification.read_start(json.loads(line))


# --- seals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("position", SEALS)
@pytest.mark.parametrize(
    "change",
    [
        lambda seal: replace(seal, first=seal.first + 1),
        lambda seal: replace(seal, last=seal.last + 1),
        lambda seal: replace(seal, head="f" * 64),
        lambda seal: replace(seal, time_ms=seal.time_ms + 1),
        lambda seal: replace(seal, ends=True, last=seal.last + 1),
        lambda seal: replace(seal, start=Start(seal.start.node, "two" if seal.start.id == "one" else "one")),
    ],
)
def test_a_seal_holds_for_what_it_says_alone(position: int, change: Callable[[Seal], Seal]) -> None:
    seal, signature = read_seal(fields_at(position))
    other = write_seal(change(seal), lambda _: signature)
    verdict = look([*WORLD[:position], other, *WORLD[position + 1 :]])
    assert Found.FORGED in found(verdict) or seal.start == OTHER
    assert not verdict.proven


@pytest.mark.parametrize("position", SEALS)
def test_a_seal_of_another_key_is_forged(position: int) -> None:
    seal, _ = read_seal(fields_at(position))
    forged = write_seal(seal, kit.key_of(Start(kit.ADMIN, "thief")).sign)
    assert Found.FORGED in found(look([*WORLD[:position], forged, *WORLD[position + 1 :]]))


def test_what_is_signed_is_nothing_else() -> None:
    seal, _ = read_seal(fields_at(SEALS[0]))
    assert message_of(seal).startswith(b"headrace audit seal 1\n{")


def test_each_seal_tells_that_what_it_covers_was_changed() -> None:
    """The events fit together, and are not those that were sealed: all that somebody can do who writes the topic."""
    verdict = look(forge(LINES_ONE, 5, source="10.6.6.6"), kit.announce(ONE))
    assert verdict.findings == ((Found.CHANGED, ONE, 4, 5), (Found.CHANGED, ONE, 6, 9))


@pytest.mark.parametrize(
    "change",
    [
        {"v": 2},
        {"first": -1},
        {"first": True},
        {"last": "3"},
        {"first": 9},
        {"head": "F" * 64},
        {"head": "f" * 63},
        {"head": None},
        {"ends": 1},
        {"time": 1.5},
        {"signature": "00"},
        {"signature": None},
        {"node": "king-1"},
        {"node": 1},
        {"start": ""},
        {"extra": 1},
    ],
)
def test_what_is_no_seal_is_unreadable(change: dict[str, Any]) -> None:
    fields = {**fields_at(SEALS[0]), **change}
    with pytest.raises(Rejected):
        read_seal(fields)
    assert Found.UNREADABLE in found(look([*WORLD, write_line(fields)]))


@pytest.mark.parametrize(
    "change",
    [{"v": 2}, {"seq": -1}, {"seq": True}, {"seq": "1"}, {"time": 0}, {"time": None}, {"prev": 1}, {"node": "x"}],
)
def test_what_is_no_event_is_unreadable(change: dict[str, Any]) -> None:
    assert found(look([*WORLD, write_line({**fields_at(1), **change})])) == [Found.UNREADABLE]


# --- starts and nodes ------------------------------------------------------------------------------------------


def test_a_start_of_which_nothing_is_there_is_missing() -> None:
    verdict = look([*LINES_ONE, *LINES_TWO])
    assert verdict.findings == ((Found.MISSING, OTHER, None, None),)
    assert verdict.changed


def test_a_start_that_nobody_has_announced_proves_nothing() -> None:
    verdict = look(WORLD, kit.announce(ONE, TWO))
    assert verdict.findings == ((Found.UNANNOUNCED, OTHER, None, None),)
    assert (verdict.proven, verdict.changed) == (False, False)


def test_events_that_no_seal_covers_are_told() -> None:
    lines = written(ONE, 3, 2, ends=False)
    assert look(lines, kit.announce(ONE)).proven
    verdict = look(lines[:-1], kit.announce(ONE))
    assert verdict.findings == ((Found.NOT_SEALED, ONE, 4, 5),)
    assert not verdict.changed


def test_an_end_that_was_removed_with_its_seal_is_found_if_the_node_says_how_far_it_is() -> None:
    lines = [*LINES_ONE, *LINES_TWO, *LINES_OTHER[:-2]]
    assert look(WORLD, COUNTED).proven
    assert look(lines, STARTS).proven, "it looks as if nothing had happened since"
    assert look(lines, COUNTED).findings == ((Found.MISSING, OTHER, 2, 2),)


def test_the_first_event_follows_none() -> None:
    first = write_line({**json.loads(LINES_ONE[0]), "prev": "f" * 64})
    assert found(look([first], kit.announce(ONE))) == [Found.CHANGED, Found.NOT_SEALED]


def test_a_start_without_its_end_is_told_once_there_is_another() -> None:
    lines = written(ONE, 3, ends=False)
    assert look(lines, kit.announce(ONE)).proven
    assert look([*lines, *LINES_TWO], kit.announce(ONE, TWO)).findings == ((Found.NOT_ENDED, ONE, None, None),)


def test_two_starts_of_a_node_at_one_time_are_told() -> None:
    assert look([*LINES_ONE, *LINES_TWO], kit.announce(ONE, TWO)).proven
    inside = written(TWO, 2, at_ms=kit.NOW_MS + SEAL_MS)
    third = Start(kit.BROKER, "three")
    later = written(third, 1, at_ms=kit.NOW_MS + SEAL_MS + 1)
    verdict = look([*LINES_ONE, *inside, *later], kit.announce(ONE, TWO, third))
    assert verdict.findings == ((Found.TWO_AT_ONCE, TWO, None, None), (Found.TWO_AT_ONCE, third, None, None))
    at_once = written(OTHER, 2, at_ms=kit.NOW_MS + SEAL_MS)
    assert look([*LINES_ONE, *at_once], kit.announce(ONE, OTHER)).proven, "they are two nodes"


def test_nothing_comes_after_the_end() -> None:
    lines = written(ONE, 2)
    last = json.loads(lines[-2])
    event = write_line({**last, "seq": last["seq"] + 1, "prev": digest_of(lines[-2])})
    seal = write_seal(Seal(ONE, 3, 3, digest_of(event), kit.NOW_MS), kit.key_of(ONE).sign)
    assert found(look([*lines, event, seal], kit.announce(ONE))) == [Found.AFTER_END, Found.AFTER_END]


# --- what is not kept for ever ---------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(1, len(LINES_ONE)))
def test_a_beginning_that_is_older_than_what_is_kept_may_be_missing(cut: int) -> None:
    lines = LINES_ONE[cut:]
    newest_ms = kit.NOW_MS + 3 * SEAL_MS
    assert look(lines, kit.announce(ONE), newest_ms).proven
    assert Found.MISSING in found(look(lines, kit.announce(ONE)))
    verdict = look(lines, kit.announce(ONE), kit.NOW_MS - 1)
    assert found(verdict) == [Found.MAYBE_MISSING]
    assert not verdict.changed


def test_a_whole_start_that_is_older_may_be_missing() -> None:
    assert look([], kit.announce(ONE), kit.NOW_MS).proven
    assert found(look([], kit.announce(ONE), kit.NOW_MS - 1)) == [Found.MAYBE_MISSING]


@pytest.mark.parametrize("position", range(len(LINES_ONE) - 1))
def test_the_middle_is_never_missing_because_of_its_age(position: int) -> None:
    lines = [*LINES_ONE[:position], *LINES_ONE[position + 1 :]]
    if position > 0:
        assert look(lines, kit.announce(ONE), kit.NOW_MS + 9 * SEAL_MS).changed


# --- bounds ----------------------------------------------------------------------------------------------------


def test_findings_are_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "FINDINGS_MAX", 3)
    verdict = look([*WORLD, *[b"x"] * 5])
    assert (len(verdict.findings), verdict.findings_more, verdict.changed) == (3, 2, True)


def test_starts_are_bounded_and_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "STARTS_MAX", 2)
    assert set(found(look(WORLD))) == {Found.TOO_MANY_STARTS, Found.MISSING}
    assert set(found(look(LINES_OTHER + LINES_ONE, kit.announce(OTHER, ONE)))) == set()


def test_a_repeat_of_long_ago_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "REPEATS_MAX", 2)
    lines = written(ONE, 5)
    assert look([*lines[:5], lines[3], *lines[5:]], kit.announce(ONE)).repeats == 1
    assert found(look([*lines[:5], lines[1], *lines[5:]], kit.announce(ONE))) == [Found.OUT_OF_ORDER]


def test_what_is_remembered_of_a_start_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verification, "REPEATS_MAX", 4)
    verifier = verification.Verifier(STARTS, kit.check)
    for line in chain(LINES_ONE, LINES_TWO):
        verifier.take(line)
    assert {len(track.latest) for track in verifier._tracks.values()} == {4}

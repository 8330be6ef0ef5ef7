"""
What becomes of the state that is there when another program takes over under the same name.

Descriptions are those of ``describe``: of a program, or of what a cluster has of one. A cluster knows what is kept, not
which steps made it, so of such only that is compared. A worker that starts holds its state against the same rules.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import ndiff
from enum import IntEnum
from typing import Any, Final

from headrace_streams.core.operators.hop import rows_text
from headrace_streams.plan.nodes import REPARTITION, partitions_text, repartition_topic

TOPIC: Final = "topic "
"""In the basis of state: stands before the name of a topic, whose value is the topic's id."""
OF_FUNCTION: Final = "values and timers of a function"
"""The form of a store whose values have forms of their own, under ``store.value``."""
VERSION: Final = ".@version"
"""In the form of a function's store, behind its name: the version of its values, where that is not the first."""
LIFTED: Final = ".@lifted-from"
"""The oldest version whose values the program lifts to its own, where it lifts any."""


class Fate(IntEnum):
    """What a change means for the state; of several the worst counts."""

    SAFE = 1
    """The program starts, and state that it still has stays."""
    NEEDS = 2
    """Something has to be done before it starts."""
    REFUSED = 3
    """The state that is there cannot become that of this program."""


@dataclass(frozen=True, slots=True)
class Change:
    """One thing that differs."""

    fate: Fate
    what: str
    do: str = ""
    """What to do about it; empty: nothing."""


@dataclass(frozen=True, slots=True)
class Versions:
    """Of the values of a function."""

    then: int
    """Those that are kept."""
    now: int
    """Those of the program."""
    oldest: int
    """Of those that the program lifts to its own."""

    @property
    def lifted(self) -> bool:
        """The program lifts what is kept."""
        return self.oldest <= self.then < self.now

    @property
    def fit(self) -> bool:
        """It can go on with what is kept."""
        return self.lifted or self.then == self.now


def versions(store: str, then: Mapping[str, str], now: Mapping[str, str]) -> Versions:
    """Of the values of a store; of one that is not a function's in both, all are the first."""
    if then.get(store) != OF_FUNCTION or now.get(store) != OF_FUNCTION:
        return Versions(1, 1, 1)
    program = now.get(store + VERSION, "1")
    return Versions(int(then.get(store + VERSION, "1")), int(program), int(now.get(store + LIFTED, program)))


def differing(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """
    Forms of state, or ids of topics, by name: those that both say, and say differently.

    What only one says may be: state comes and goes, and the old program may come back. Values of another version of a
    function are its store's form, and are no difference where the program lifts them.
    """
    found: dict[str, None] = {}
    for name, said in now.items():
        store = store_of(name, now)
        of = versions(store, then, now)
        if not of.fit:
            found[store] = None
        elif not of.lifted and not name.endswith((VERSION, LIFTED)) and then.get(name, said) != said:
            found[name] = None
    return list(found)


def difference(what: str, then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """What differs in a form, in words."""
    of = versions(what, then, now)
    if of.fit:
        return f"the state {what!r} is kept as {then[what]}; the program wants {now[what]}"
    lifts = f", and lifts from {of.oldest} on" if of.oldest < of.now else ""
    return f"the values of {what!r} are of version {of.then}; the program has version {of.now}{lifts}"


def store_of(name: str, forms: Mapping[str, str]) -> str:
    """Of which store this is a form: ``seen`` has its own, and ``seen.n`` for a value of its function."""
    owner = name
    while "." in owner:
        owner = owner.rpartition(".")[0]
        if forms.get(owner) == OF_FUNCTION:
            return owner
    return name


def compare(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """What differs, the worst first; nothing: it is the same program."""
    found = [*_topics(old, new), *_lost(old), *_stores(old, new), *_hops(old, new), *_steps(old, new)]
    return sorted(found, key=lambda change: -change.fate)


def _topics(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Partitions of internal topics, and topics that are others now."""
    app = new["app"]
    anew = f"headrace streams reset {app}"
    for topic, count in new["topics"].items():
        was = old["topics"].get(topic, count)
        if was != count:
            yield Change(
                Fate.REFUSED,
                f"the topic {topic} has {partitions_text(was)}, and the program needs {count}: its rows or state would "
                "be in the wrong tasks",
                f"{anew} begins anew",
            )
    before = {part["name"]: part.get("topic_ids", {}) for part in old["sub_topologies"]}
    others = [
        topic
        for part in new["sub_topologies"]
        for topic in differing(before.get(part["name"], {}), part.get("topic_ids", {}))
    ]
    for topic in dict.fromkeys(others):
        yield Change(
            Fate.NEEDS,
            f"the topic {topic} was deleted and made anew, and there is state that belongs to what was in it",
            f"{anew} begins anew",
        )


def _lost(old: Mapping[str, Any]) -> Iterator[Change]:
    """State that a cluster had, by its sub-topology, as ``plan.lost`` finds it."""
    yield from (Change(Fate.NEEDS, *said) for said in old.get("lost", {}).values())


def _stores(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    parts = {part["name"]: part["stores"] for part in new["sub_topologies"]}
    before = {part["name"]: part["stores"] for part in old["sub_topologies"]}
    where = {store: name for name, forms in parts.items() for store in names_of(forms)}
    where_before = {store: name for name, forms in before.items() for store in names_of(forms)}
    reset = f"headrace streams reset {new['app']} --store"
    for name, forms in before.items():
        now = parts.get(name, {})
        for what in differing(forms, now):
            store = store_of(what, now)
            yield Change(
                Fate.NEEDS,
                difference(what, forms, now),
                f"{reset} {store} lets it begin empty, and so does another name=",
            )
        for store in names_of(now):
            of = versions(store, forms, now)
            if of.lifted:
                yield Change(
                    Fate.SAFE,
                    f"the values of {store!r} are lifted from version {of.then} to {of.now}; a program with version "
                    f"{of.then} cannot go on with them then",
                )
        for store in names_of(forms):
            if where.get(store) in old.get("lost", {}):
                continue
            if store in where and store not in names_of(now) and store not in names_of(before.get(where[store], {})):
                yield Change(
                    Fate.REFUSED,
                    f"the state {store!r} belongs to what {name} reads; the program has it where {where[store]} is "
                    "read, and it would begin empty there",
                    "give it another name=, or read the topics as before",
                )
            elif store not in where:
                yield Change(
                    Fate.SAFE,
                    f"the state {store!r} is not in the program; it stays as it is for one that has it again",
                    f"{reset} {store} deletes it",
                )
    for store, name in where.items():
        if store not in where_before and name not in old.get("lost", {}):
            yield Change(Fate.SAFE, f"the state {store!r} is new and begins empty")


def names_of(forms: Mapping[str, str]) -> list[str]:
    """Of the stores that these are forms of."""
    return list(dict.fromkeys(store_of(name, forms) for name in forms))


def _hops(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    """Rows in a repartition topic have the columns of the program that sends them."""
    app = new["app"]
    then = _rows(old, app)
    for topic, now in _rows(new, app).items():
        if then.get(topic, now) != now:
            yield Change(
                Fate.NEEDS,
                f"rows in {topic} have the columns {then[topic]}; the program wants {now}",
                f"run the program of before until `headrace group lag {app}` says 0 for it, stop its workers, then "
                "start this one",
            )


def _rows(plan: Mapping[str, Any], app: str) -> Mapping[str, str]:
    """The columns of rows, by repartition topic: as the program says, or as a cluster has them."""
    hops = (node for node in _nodes(plan) if node["kind"] == REPARTITION)
    said = {repartition_topic(app, node["name"]): rows_text(node["settings"]["columns"]) for node in hops}
    kept: Mapping[str, str] = plan.get("rows", {})
    return {**said, **kept}


def _steps(old: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[Change]:
    then, now = [_line(node) for node in _nodes(old)], [_line(node) for node in _nodes(new)]
    if then:  # a cluster tells none
        yield from (Change(Fate.SAFE, line) for line in ndiff(then, now) if line[0] in "+-")


def _nodes(plan: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [node for part in plan["sub_topologies"] for node in part.get("nodes", ())]


def _line(node: Mapping[str, Any]) -> str:
    """A step as it is compared: what it does, not where the program says so."""
    said = [node["kind"], *([repr(node["name"])] if node["name"] else []), *node["topics"]]
    return " ".join([*said, *([json.dumps(node["settings"], sort_keys=True)] if node["settings"] else [])])

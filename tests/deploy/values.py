"""
Walks the chart's values and their schema together: which keys there are, which of them are ours, and what a slip of the
hand makes of them.
"""

from __future__ import annotations

import copy
import functools
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy import chart, manifests, settings
from tools.settings import DYNAMIC, OF_PROCESSES

from headrace_common.core.setting_tables import TOPIC_SETTINGS

Key = tuple[str | int, ...]

_OF_KUBERNETES: Final = frozenset(
    {"toleration", "env", "probe", "readinessProbe", "selector", "peer", "resources", "affinity"}
)
"""Definitions whose inside is Kubernetes', not ours."""


def dotted(key: Key) -> str:
    return ".".join(map(str, key))


def resolved(part: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The schema that ``part`` stands for, and the name of its definition if it has one."""
    reference = part.get("$ref")
    if reference is None:
        return part, ""
    name = str(reference).removeprefix("#/definitions/")
    return chart.schema()["definitions"][name], name


def walk(part: Mapping[str, Any] | None = None, at: Key = ()) -> Iterator[tuple[Key, Mapping[str, Any]]]:
    """Every key that is ours, down to those whose value is a leaf or Kubernetes'; elements of lists have the key 0."""
    whole, name = resolved(part if part is not None else chart.schema())
    inner: list[tuple[Key, Mapping[str, Any]]] = []
    if name not in _OF_KUBERNETES and (not at or at[-1] not in _OF_KUBERNETES):
        inner = [((*at, key), below) for key, below in whole.get("properties", {}).items()]
        if resolved(whole.get("items", {}))[0].get("properties"):
            inner.append(((*at, 0), whole["items"]))
    if not inner:
        yield at, whole
    for key, below in inner:
        yield from walk(below, key)


def schema_at(key: Key) -> Mapping[str, Any]:
    """Raises: KeyError, if the schema has nothing there."""
    part: Mapping[str, Any] = chart.schema()
    for step in key:
        part = resolved(part)[0]
        if isinstance(step, int):
            part = part["items"]
        elif step in part.get("properties", {}):
            part = part["properties"][step]
        elif part.get("patternProperties"):
            part = next(iter(part["patternProperties"].values()))
        elif isinstance(part.get("additionalProperties"), dict):
            part = part["additionalProperties"]
        else:
            raise KeyError(dotted(key))
    return resolved(part)[0]


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm lays values over values: maps are joined, all else is replaced."""
    found = copy.deepcopy(dict(base))
    for key, value in over.items():
        below = found.get(key)
        joined = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else copy.deepcopy(value)
        found[key] = joined
    return found


@functools.cache
def _every() -> dict[str, dict[str, Any]]:
    given = manifests.read(Path(__file__).with_name("every_value.yaml").read_text())
    base: dict[str, Any] = given["values"]
    base["config"] = {"cluster": settings.values_of(DYNAMIC)}
    of_services = chart.schema()["properties"]["config"]["properties"]
    for service in OF_PROCESSES:
        base["config"][service] = _others(service, of_services[service])
    of_apps = chart.schema()["properties"]["streamsApps"]["items"]["properties"]["settings"]
    base["streamsApps"][0]["settings"] = _others("streams", of_apps)
    base["topics"][0]["configs"] = settings.values_of(TOPIC_SETTINGS)
    return {"all": base} | {name: merged(base, over) for name, over in given["apart"].items()}


def _others(service: str, part: Mapping[str, Any]) -> dict[str, Any]:
    """Another value than the default for each setting of a process that the schema has."""
    known = settings.defaults(service)
    return {name: settings.another(below, known[name], name) for name, below in part["properties"].items()}


def every() -> dict[str, dict[str, Any]]:
    """Sets of values that together set every key; yours to change."""
    return copy.deepcopy(_every())


def every_but_settings() -> dict[str, dict[str, Any]]:
    """The same without settings of processes and topics, which are most of the keys and have a test of their own."""
    found = every()
    for given in found.values():
        given["config"] = {"broker": {"otlp_endpoint": "collector.tracing:4317"}}
        del given["topics"][0]["configs"]
    return found


def has(values: Any, key: Key) -> bool:
    for step in key:
        if isinstance(step, int):
            if not isinstance(values, list) or len(values) <= step:
                return False
        elif not isinstance(values, dict) or step not in values:
            return False
        values = values[step]
    return True


def get(values: Any, key: Key) -> Any:
    for step in key:
        values = values[step]
    return values


def without(values: Mapping[str, Any], key: Key) -> dict[str, Any]:
    found = copy.deepcopy(dict(values))
    del get(found, key[:-1])[key[-1]]
    return found


@dataclass(frozen=True, slots=True)
class Typo:
    """Values with one slip in them."""

    what: str
    names: str
    """What a message has to name: the key as it was written."""
    values: dict[str, Any]


def typo(seed: int) -> Typo:
    """One slip of the hand, the same for the same seed: in a key, in the kind of a value, or in one of a few words."""
    chance = random.Random(seed)
    values = every()["all"]
    while True:
        key = chance.choice(_closed(values))
        name = str(key[-1])
        made = chance.choice((_slipped_key, _slipped_key, _wrong_kind, _wrong_word))(chance, values, key)
        if made is not None:
            what, written, wrong = made
            return Typo(f"{dotted(key)}: {what}", written or name, wrong)


def _closed(value: Any, at: Key = ()) -> list[Key]:
    """The keys of ``value`` that are in an object which takes no others."""
    found: list[Key] = []
    if isinstance(value, dict):
        part = schema_at(at)
        named_by_users = [chart.schema()["definitions"][name] for name in ("labels", "annotations")]
        closed = part.get("additionalProperties") is False and part not in named_by_users
        for name, below in value.items():
            if closed:
                found.append((*at, name))
            if closed or at == ():
                found += _closed(below, (*at, name))
    elif isinstance(value, list) and "items" in schema_at(at):
        for index, below in enumerate(value):
            found += _closed(below, (*at, index))
    return found


_Made = tuple[str, str, dict[str, Any]]


def _slipped_key(chance: random.Random, values: dict[str, Any], key: Key) -> _Made | None:
    name = str(key[-1])
    place = chance.randrange(len(name) - 1)
    slip, written = chance.choice(
        [
            ("two letters swapped", name[:place] + name[place + 1] + name[place] + name[place + 2 :]),
            ("a letter dropped", name[:place] + name[place + 1 :]),
            ("a letter doubled", name[:place] + name[place] * 2 + name[place + 1 :]),
            ("the other case", name[:place] + name[place].swapcase() + name[place + 1 :]),
            ("another separator", name.replace(".", "_") if "." in name else name.replace("_", "-")),
        ]
    )
    if written in schema_at(key[:-1]).get("properties", {}):
        return None
    found = copy.deepcopy(values)
    holder = get(found, key[:-1])
    holder[written] = holder.pop(name)
    return slip, written, found


_OTHERS: Final[tuple[Any, ...]] = ("three", 7.5, True, ["a"], {"a": "b"})


def _wrong_kind(chance: random.Random, values: dict[str, Any], key: Key) -> _Made | None:
    part = schema_at(key)
    kinds = part.get("type", [])
    kinds = [kinds] if isinstance(kinds, str) else kinds
    takes = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    wrong = [
        value
        for value in _OTHERS
        if not any(isinstance(value, takes[k]) and (k == "boolean" or value is not True) for k in kinds)
    ]
    if not kinds or not wrong:
        return None
    value = chance.choice(wrong)
    found = copy.deepcopy(values)
    get(found, key[:-1])[key[-1]] = value
    return f"{value!r} in place of {'/'.join(kinds)}", "", found


def _wrong_word(chance: random.Random, values: dict[str, Any], key: Key) -> _Made | None:
    words = [word for word in schema_at(key).get("enum", []) if isinstance(word, str)]
    if not words:
        return None
    word = chance.choice(words)
    written = chance.choice([word[1:], word + word[-1], word.swapcase()])
    if written in words:
        return None
    found = copy.deepcopy(values)
    get(found, key[:-1])[key[-1]] = written
    return f"{written!r} in place of one of {words}", "", found

"""What ``--discover`` says there is, and what of it is chosen."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from headrace_connect.settings import near

_ID: Final = "tap_stream_id"
_NO_TOPIC: Final = re.compile(r"[^a-zA-Z0-9._-]")
_NAMED_MAX: Final = 20
_TOPIC_CHARS_MAX: Final = 249


class BadCatalog(ValueError):
    """It is no catalog; says why."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What the settings say."""

    include: Sequence[str] = ()
    """Regular expressions; none: all streams."""
    exclude: Sequence[str] = ()
    properties_exclude: Sequence[str] = ()
    """Regular expressions of ``STREAM.PROPERTY``."""
    metadata: Mapping[str, Any] = field(default_factory=dict, hash=False)
    """``KEY`` or ``STREAM.KEY`` -> value."""

    def takes(self, stream: str) -> bool:
        """Whether a stream is chosen."""
        return _matches(stream, self.include or (".*",)) and not _matches(stream, self.exclude)


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@dataclass(frozen=True, slots=True)
class Catalog:
    """Of one tap."""

    streams: Sequence[Mapping[str, Any]]

    @classmethod
    def parse(cls, text: bytes) -> Catalog:
        """
        Raises:
            BadCatalog: it is none.
        """
        try:
            said = orjson.loads(text)
        except orjson.JSONDecodeError as wrong:
            raise BadCatalog(
                f"it is not JSON: {wrong}; it begins with {text[:60].decode(errors='replace')!r}"
            ) from None
        streams = said.get("streams") if isinstance(said, dict) else None
        if not isinstance(streams, list) or not all(_is_stream(one) for one in streams):
            raise BadCatalog("it is no list of streams, each with a name and a schema")
        return cls(streams)

    @property
    def names(self) -> list[str]:
        """Ids of all streams: what settings name."""
        return [_id(one) for one in self.streams]

    def chosen(self, choice: Choice) -> list[str]:
        """What RECORD messages call the streams that are chosen."""
        return [_name(one) for one in self.streams if choice.takes(_id(one))]

    def takes(self, stream: str, choice: Choice) -> bool:
        """Whether records of this name are of a chosen stream; one that is not in the catalog goes by its name."""
        known = [one for one in self.streams if _name(one) == stream]
        return any(choice.takes(_id(one)) for one in known) if known else choice.takes(stream)

    def find_problems(self, choice: Choice) -> list[str]:
        """What the settings ask for that is not there."""
        names = self.names
        problems = [
            f"stream.include.list: the tap has no stream {pattern}{near(pattern, names)}; {listed(names)}"
            for pattern in choice.include
            if not any(re.fullmatch(pattern, name) for name in names)
        ]
        if not problems and not any(choice.takes(name) for name in names):
            problems.append(f"stream.include.list: no stream is chosen; {listed(names)}")
        for key in choice.metadata:
            stream = key.rpartition(".")[0]
            if stream and stream not in names:
                problems.append(f"metadata.{key}: the tap has no stream {stream}{near(stream, names)}")
        return problems

    def select(self, choice: Choice) -> dict[str, Any]:
        """The catalog for a run: what is chosen is marked, in each of the ways that taps know."""
        return {"streams": [_marked(deepcopy(dict(one)), choice) for one in self.streams]}

    def bookmarks(self, choice: Choice) -> dict[str, str]:
        """The replication key of each stream that is read by one."""
        found: dict[str, str] = {}
        for one in self.select(choice)["streams"]:
            own = _metadata_of(one, ()).get("metadata", {})
            key = own.get("replication-key") or one.get("replication_key")
            if isinstance(key, str):
                found[_name(one)] = key
        return found


def topic_name(pattern: str, stream: str) -> str:
    """What has no place in the name of a topic is ``_``."""
    return _NO_TOPIC.sub("_", pattern.replace("{stream}", stream))[:_TOPIC_CHARS_MAX]


def find_topic_problems(pattern: str, streams: Sequence[str]) -> list[str]:
    """Streams that would share a topic."""
    seen: dict[str, str] = {}
    problems: list[str] = []
    for stream in streams:
        topic = topic_name(pattern, stream)
        if topic in seen:
            problems.append(
                f"topic.pattern: {seen[topic]} and {stream} would both be the topic {topic}; choose one of them"
            )
        seen.setdefault(topic, stream)
    return problems


def listed(names: Sequence[str]) -> str:
    """Streams, for people."""
    more = f" and {len(names) - _NAMED_MAX} more" if len(names) > _NAMED_MAX else ""
    return f"it has {', '.join(names[:_NAMED_MAX]) or 'none'}{more}"


def _is_stream(one: Any) -> bool:
    return (
        isinstance(one, dict)
        and isinstance(one.get(_ID) or one.get("stream"), str)
        and isinstance(one.get("schema"), dict)
    )


def _id(one: Mapping[str, Any]) -> str:
    return str(one.get(_ID) or one["stream"])


def _name(one: Mapping[str, Any]) -> str:
    return str(one.get("stream") or one[_ID])


def _metadata_of(one: dict[str, Any], breadcrumb: Sequence[str]) -> dict[str, Any]:
    """The entry for a place; it is made where there is none."""
    entries = one.setdefault("metadata", [])
    for entry in entries:
        if isinstance(entry, dict) and list(entry.get("breadcrumb") or ()) == list(breadcrumb):
            return entry
    made: dict[str, Any] = {"breadcrumb": list(breadcrumb), "metadata": {}}
    entries.append(made)
    return made


def _marked(one: dict[str, Any], choice: Choice) -> dict[str, Any]:
    name = _id(one)
    chosen = choice.takes(name)
    if not isinstance(one.get("metadata"), list):
        one["metadata"] = []
    own = _metadata_of(one, ()).setdefault("metadata", {})
    own["selected"] = one["selected"] = one["schema"]["selected"] = chosen
    if not chosen:
        return one
    for key, value in choice.metadata.items():
        stream, _, word = key.rpartition(".")
        if stream in ("", name):
            own[word] = value
    properties = one["schema"].get("properties")
    for inner, schema in properties.items() if isinstance(properties, dict) else ():
        place = _metadata_of(one, ("properties", inner)).setdefault("metadata", {})
        inclusion = place.get("inclusion") or (schema.get("inclusion") if isinstance(schema, dict) else None)
        if inclusion == "unsupported":
            continue
        wanted = not _matches(f"{name}.{inner}", choice.properties_exclude)
        place["selected"] = wanted
        if isinstance(schema, dict):
            schema["selected"] = wanted
    return one

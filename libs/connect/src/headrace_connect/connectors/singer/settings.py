"""Settings of the source ``singer``, and what follows from them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from headrace_connect.connectors.singer.catalog import Choice
from headrace_connect.connectors.singer.process import Limits
from headrace_connect.connectors.singer.shapes import Extra, Types
from headrace_connect.settings import looks_secret, setting

_FILE_BYTES_MAX: Final = 16 << 20
_STREAM: Final = "{stream}"


@dataclass(frozen=True, slots=True, repr=False)
class SourceSettings:
    """Of the source ``singer``."""

    tap_executable: str
    """The tap: the name of its program, as ``tap-csv``, in an environment of ``plugin_path``, in the connector's own or
    of ``PATH``; or a path."""
    config: Mapping[str, str] = setting(prefix="config.")
    """The tap's configuration: ``config.start_date``, ``config.auth.token``. A value that is JSON is what JSON says,
    ``"1"`` is a text; what looks like a secret always is a text."""
    tap_config_file: str = setting("", key="tap.config.file")
    """A file with the tap's configuration as JSON; what ``config.*`` says goes before it."""
    tap_discover: bool = setting(True, key="tap.discover")
    """Whether the tap is asked with ``--discover`` what there is. ``false``: for one that cannot say it."""
    tap_catalog_file: str = setting("", key="tap.catalog.file")
    """A file with a catalog, which is used instead of asking the tap."""
    tap_catalog_option: Literal["catalog", "properties"] = setting("catalog", key="tap.catalog.option")
    """How the tap is given the catalog: ``--catalog``, or ``--properties`` of older ones."""
    topic_pattern: str = _STREAM
    """The topic of a stream: ``{stream}`` is its name, in which ``_`` stands for what topics cannot have."""
    stream_include_list: tuple[str, ...] = ()
    """Which streams: regular expressions that match the whole name. Empty: all."""
    stream_exclude_list: tuple[str, ...] = ()
    """Which of them not."""
    property_exclude_list: tuple[str, ...] = ()
    """Which properties not: regular expressions that match ``STREAM.PROPERTY``."""
    metadata: Mapping[str, str] = setting(prefix="metadata.")
    """Of the catalog: ``metadata.replication-method`` for all streams that are chosen, or
    ``metadata.STREAM.replication-key`` for one."""
    types: Types = "schema"
    """What values become. ``schema``: what the stream's schema says, as dates and decimals. ``json``: what they are in
    JSON."""
    extra_properties: Extra = "refuse"
    """A property of a record that its schema does not have: the record is refused, or it is left out."""
    repeats: Literal["drop", "keep"] = "drop"
    """Records of a stream with a key and a replication key that the run before sent last, and that come again without a
    change because the tap begins at the last value: they are left out, or kept."""
    state_bytes_max: int = setting(64 << 20, low=1 << 10, high=1 << 30)
    """What a tap may send between two STATE messages; it waits in memory, and is committed at once."""
    state_overflow: Literal["fail", "repeat"] = setting("fail", key="state.overflow")
    """What happens beyond that. ``fail``: the task fails. ``repeat``: records are committed without a position, so they
    come again after a failure."""
    run_interval_ms: int = setting(60_000, low=1, high=604_800_000)
    """How long after a run has ended the tap is run again."""
    silence_timeout_ms: int = setting(600_000, low=100, high=86_400_000)
    """A tap that writes nothing for so long, neither records nor its log, is killed."""
    discover_timeout_ms: int = setting(45_000, low=100, high=3_600_000)
    """How long ``--discover`` may take. Workers give a validation ``plugin_ms_max`` in all."""
    line_bytes_max: int = setting(16 << 20, low=1 << 10, high=256 << 20)
    """A longer line is refused."""

    def __post_init__(self) -> None:
        if not self.tap_executable.strip() or self.tap_executable.startswith("-"):
            raise ValueError("tap.executable is the name of a program, or its path")
        if _STREAM not in self.topic_pattern:
            raise ValueError(f"topic.pattern has no {_STREAM}: each stream needs a topic of its own")
        if self.tap_catalog_file and not self.tap_discover:
            raise ValueError("tap.catalog.file is used instead of discovery: leave tap.discover out")
        patterns = (*self.stream_include_list, *self.stream_exclude_list, *self.property_exclude_list)
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        self.nested_config({})

    @property
    def limits(self) -> Limits:
        """Of the tap's process."""
        return Limits(self.silence_timeout_ms, self.discover_timeout_ms, self.line_bytes_max)

    @property
    def choice(self) -> Choice:
        """Of streams."""
        metadata = {key: _value("", text) for key, text in self.metadata.items()}
        return Choice(self.stream_include_list, self.stream_exclude_list, self.property_exclude_list, metadata)

    def read_config(self) -> dict[str, Any]:
        """
        The tap's configuration.

        Raises:
            ValueError: the file cannot be used.
        """
        return self.nested_config(self._read("tap.config.file", self.tap_config_file) if self.tap_config_file else {})

    def read_catalog(self) -> bytes:
        """
        The catalog of the file.

        Raises:
            ValueError: the file cannot be used.
        """
        return orjson.dumps(self._read("tap.catalog.file", self.tap_catalog_file))

    def nested_config(self, base: Mapping[str, Any]) -> dict[str, Any]:
        """
        ``base`` with the settings ``config.*``; dots in their names are objects in one another.

        Raises:
            ValueError: one is below another that is no object.
        """
        made = dict(base)
        for key, text in sorted(self.config.items()):
            *path, last = key.split(".")
            at = made
            for part in path:
                inner = at.get(part, {})
                if not isinstance(inner, dict):
                    raise ValueError(f"config.{key}: config.{key.rpartition('.')[0]} is no object")
                at[part] = at = dict(inner)
            if not all((*path, last)):
                raise ValueError(f"config.{key} has an empty name")
            at[last] = _value(key, text)
        return made

    @staticmethod
    def _read(key: str, path: str) -> dict[str, Any]:
        try:
            with Path(path).open("rb") as file:
                text = file.read(_FILE_BYTES_MAX + 1)
            said = orjson.loads(text) if len(text) <= _FILE_BYTES_MAX else None
        except OSError as error:
            raise ValueError(f"{key}: {path} cannot be read: {error.strerror}") from None
        except orjson.JSONDecodeError:
            said = None
        if not isinstance(said, dict):
            raise ValueError(f"{key}: {path} is no JSON object of at most {_FILE_BYTES_MAX} bytes")
        return said


def _value(key: str, text: str) -> Any:
    if looks_secret(key):
        return text
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text

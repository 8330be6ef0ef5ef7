"""Finds connectors by what ``connector.class`` says."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

from headrace_common.core.errors import HeadraceError, InvalidConfig
from headrace_common.runtime.modules import load_file
from headrace_connect.core.errors import BrokenPlugin
from headrace_connect.plugin import Connector, Sink, Source
from headrace_connect.runtime.aliases import ALIASES, REFUSED
from headrace_connect.settings import near

GROUP: Final = "headrace.connectors"
"""Entry points of this group are connectors."""
SHIPPED: Final[dict[str, str]] = {
    "files": "headrace_connect.connectors.files:FilesSource",
    "files-sink": "headrace_connect.connectors.files:FilesSink",
    "http-poll-source": "headrace_connect.connectors.http:HttpPollSource",
    "http-sink": "headrace_connect.connectors.http:HttpSink",
    "http-source": "headrace_connect.connectors.http:HttpSource",
    "kafka-import": "headrace_connect.connectors.kafka_import:KafkaSource",
    "lake-sink": "headrace_connect.connectors.lake_sink:LakeSink",
    "mirror": "headrace_connect.connectors.mirror:MirrorSource",
    "postgres-cdc": "headrace_connect.connectors.postgres_cdc:PostgresSource",
    "singer": "headrace_connect.connectors.singer:SingerSource",
    "sql-sink": "headrace_connect.connectors.sql_sink:SqlSink",
    "sql-source": "headrace_connect.connectors.sql_source:SqlSource",
}
"""Connectors of this package, by name."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A connector that can be named."""

    name: str
    where: str
    """``package.module:Class``."""


def list_connectors() -> list[Listed]:
    """All that have a name, sorted by it; nothing is imported. What is installed goes before what ships."""
    named = {**SHIPPED, **_find_installed(_stamp())}
    return [Listed(name, where) for name, where in sorted(named.items())]


_Stamp: TypeAlias = tuple[tuple[str, int], ...]


def _stamp() -> _Stamp:
    """Another one when a package was installed or removed: its folder of metadata came or went then."""
    found = []
    for path in sys.path:
        try:
            found.append((path, os.stat(path or ".").st_mtime_ns))
        except OSError:
            continue
    return tuple(found)


@lru_cache(maxsize=1)
def _find_installed(stamp: _Stamp) -> Mapping[str, str]:
    """What packages say; it takes 10 ms, and a task that starts asks several times."""
    del stamp
    return {point.name: point.value for point in entry_points(group=GROUP)}


def find_connector(given: str) -> type[Source[Any]] | type[Sink[Any]]:
    """
    The class of ``postgres-cdc``, ``package.module:Class`` or ``file.py:Class``, or what stands in for one of Java.

    Raises:
        InvalidConfig: there is none, or it cannot be imported; says why.
    """
    listed = {one.name: one.where for one in list_connectors()}
    if given in REFUSED:
        raise InvalidConfig(f"connector.class: nothing stands in for {given}: {REFUSED[given]}")
    given = ALIASES[given].name if given in ALIASES else given
    where, separator, attribute = listed.get(given, given).partition(":")
    if not separator:
        raise InvalidConfig(
            f"connector.class: there is no connector {given[:80]!r}{near(given, list(listed))}; "
            "`headrace connect plugins` lists them, and package.module:Class or file.py:Class names one of yours"
        )
    try:
        module = _load_file(Path(where)) if where.endswith(".py") else importlib.import_module(where)
    except HeadraceError:
        raise
    except (Exception, SystemExit) as error:  # whatever a module does when it is imported
        raise BrokenPlugin(f"connector.class: {where} cannot be imported: {error!r}") from error
    found = getattr(module, attribute, None)
    if not (isinstance(found, type) and issubclass(found, Source | Sink)):
        connectors = [name for name, value in vars(module).items() if _is_connector(value)]
        raise InvalidConfig(
            f"connector.class: {where} has no source or sink {attribute!r}; it has {_listed(connectors)}"
        )
    return found


def _is_connector(value: object) -> bool:
    own = (Connector, Source, Sink)
    return isinstance(value, type) and issubclass(value, Connector) and value not in own


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidConfig(f"connector.class: there is no file {path}")
    return load_file(path)

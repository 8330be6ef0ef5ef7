"""A connector that is watched by a host."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from headrace_common.runtime.clock import limit_s, pause_ms
from headrace_connect.core.backoff import Backoff
from headrace_connect.core.host_messages import Kind, Report, SplitForm, Watch, WatchReport
from headrace_connect.plugin import Chunk, Position, Source, Split
from headrace_connect.runtime import host_work
from headrace_connect.runtime.configuring import configure
from headrace_connect.runtime.host_work import Given, HostedWatch
from headrace_connect.settings import Secrets


@dataclass(frozen=True, slots=True)
class Settings:
    """None."""


class Late(Source[Settings]):
    """Has nothing to read at first."""

    parts: ClassVar[list[Split]] = []

    def splits(self) -> Sequence[Split]:
        return list(self.parts)

    def read(self, split: Split, after: Position | None) -> Iterator[Chunk]:
        return iter(())


class NoProcess:
    """Of no cluster."""

    topics: Any = None


async def test_a_source_that_has_nothing_to_read_is_soon_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_work, "EMPTY", Backoff(1, 1))
    monkeypatch.setattr(Late, "parts", [])
    config = {
        "name": "late",
        "connector.class": f"{__name__}:Late",
        "topic": "t",
        "rescan.interval.ms": "86400000",
    }
    reports: list[Report] = []
    given = Given(NoProcess(), Secrets(), reports.append)  # type: ignore[arg-type]
    watch = HostedWatch(Watch("late", 3, config), given)
    running = asyncio.create_task(watch.run())
    async with limit_s(30):
        while not reports:
            await pause_ms(1)
        Late.parts.append(Split("a"))
        while len(reports) < 2:
            await pause_ms(1)
    watch.stop()
    await running
    assert reports == [
        WatchReport("late", 3, Kind.SOURCE, "", 0, ()),
        WatchReport("late", 3, Kind.SOURCE, "", 1, (SplitForm("a"),)),
    ]


@pytest.mark.parametrize(("value", "again"), [("t", False), ("${env:TOPIC}", True)])
async def test_a_configuration_is_read_again_only_for_its_secrets(
    monkeypatch: pytest.MonkeyPatch, value: str, again: bool
) -> None:
    monkeypatch.setenv("TOPIC", "t")
    read: list[object] = []
    asked: list[None] = []

    def count(config: Mapping[str, str], secrets: Secrets) -> object:
        read.append(config)
        return configure(config, secrets)

    def splits(source: Late) -> Sequence[Split]:
        asked.append(None)
        return [Split("a")]

    monkeypatch.setattr(host_work, "configure", count)
    monkeypatch.setattr(Late, "splits", splits)
    config = {"name": "late", "connector.class": f"{__name__}:Late", "topic": value, "rescan.interval.ms": "100"}
    watch = HostedWatch(Watch("late", 3, config), Given(NoProcess(), Secrets(), lambda _: None))  # type: ignore[arg-type]
    running = asyncio.create_task(watch.run())
    async with limit_s(30):
        while len(asked) < 2:
            await pause_ms(1)
    watch.stop()
    await running
    assert len(read) == (1 + len(asked) if again else 1)

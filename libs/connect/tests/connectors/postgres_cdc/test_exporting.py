"""A task that has Spark read its tables: what it does in which order, and what becomes of the job."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.postgres_cdc import PostgresSource
from headrace_connect.connectors.postgres_cdc.exporting import LOOK_MS, Exporter
from headrace_connect.connectors.postgres_cdc.position import Place
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.connectors.postgres_cdc.slots import Holder, Slot
from headrace_connect.connectors.postgres_cdc.tables import Table
from headrace_connect.core.events import SNAPSHOT, Event
from headrace_connect.core.jobs import Job, JobFailed, JobState
from headrace_connect.plugin import RetriableError, Split

SPLIT: Final = Split("all")
READ: Final = Place("7", 16, read=frozenset({1}))
TABLE: Final = Table(1, "public", "orders", "d")
RUNS: Final = JobState("it runs")
POINT: Final = {
    "snapshot": "0003-1",
    "system": "7",
    "lsn": "0/10",
    "owner": "the-owner",
    "offset_topic": "offsets",
    "split": "all",
}


@dataclass
class World:
    """Units, jobs, and the server: all that is called is in ``said``."""

    said: list[str] = field(default_factory=list)
    slot: Slot | None = None
    positions: list[Place | None] = field(default_factory=lambda: [None, None, READ])
    """By question; the last one stays."""
    states: list[JobState | None] = field(default_factory=lambda: [RUNS])
    refuses: Exception | None = None
    """How the job cannot be started."""
    lost_after: int = 1_000_000
    """So many looks later the snapshot is lost."""
    jobs_begun: list[Job] = field(default_factory=list)
    told: list[Event] = field(default_factory=list)
    holds: asyncio.Event | None = None
    """Set when the snapshot is looked at; it is never lost then, and the look does not end."""
    owner: str = "the-owner"
    offset_topic: str = "offsets"
    version: int = 170_000

    # units

    async def fence(self) -> None:
        self.said.append("fence")

    async def position(self, split: Split) -> Any:
        assert split is SPLIT
        self.said.append("find")
        found = self.positions.pop(0) if len(self.positions) > 1 else self.positions[0]
        return None if found is None else found.to_json()

    # jobs

    async def start(self, job: Job) -> str:
        self.said.append("start")
        if self.refuses is not None:
            raise self.refuses
        self.jobs_begun.append(job)
        return "it is begun"

    async def look(self, job: Job) -> JobState | None:
        assert job == self.jobs_begun[-1]
        self.said.append("look")
        return self.states.pop(0) if len(self.states) > 1 else self.states[0]

    async def end(self, job: Job) -> None:
        del job
        self.said.append("end")

    # the server

    async def identify(self) -> tuple[str, int]:
        return "7", 99

    async def export(self, slot: str, *, failover: bool) -> tuple[str, int]:
        assert slot == "headrace_shop"
        self.said.append("export, failover" if failover else "export")
        return "0003-1", 16

    async def check_held(self, ms: float) -> None:
        assert ms == LOOK_MS
        self.said.append("held")
        if self.holds is not None:
            self.holds.set()
            await asyncio.Event().wait()
        if self.lost_after == 0:
            raise RetriableError("the connection is lost")
        self.lost_after -= 1

    async def fetch(self, statement: str, *args: Any) -> list[Any]:
        assert args == ("headrace_shop",)
        self.said.append("drop" if "drop_replication_slot" in statement else "look for the slot")
        if self.slot is None or "drop" in statement:
            return []
        return [("pgoutput", "d", self.slot.active_pid, "0/1", "reserved", self.slot.holder)]


async def place(world: World, tables: Sequence[Table] = (TABLE,), **given: Any) -> Place:
    settings = SourceSettings("shop", "shop", "db", "d", "u", snapshot_engine="spark", **given)
    source = PostgresSource(settings)
    outside = cast("Any", world)
    source.units, source.jobs, source.notify = outside, outside, world.told.append
    return await Exporter(source, outside, outside, SPLIT).place(tables, Holder.of("shop", 5))


async def test_a_snapshot_is_read_by_a_job_that_knows_its_point(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    with caplog.at_level(logging.WARNING):
        assert await place(world) == READ
    begins = ["fence", "find", "look for the slot", "export", "fence", "start"]
    assert world.said == [*begins, "held", "look", "find", "held", "look", "find", "end"]
    [job] = world.jobs_begun
    assert (job.name, job.arguments[0]) == ("table_snapshot", "--point")
    assert json.loads(job.arguments[1]) == POINT
    [said] = [record.getMessage() for record in caplog.records]
    assert said.endswith("a snapshot that this task keeps open; it is begun")


async def test_what_is_committed_is_not_read_again() -> None:
    world = World(positions=[READ], slot=Slot("pgoutput", "d", None, 1, is_lost=False, holder=""))
    assert await place(world) == READ
    assert world.said == ["fence", "find"], "the slot stays"


async def test_a_slot_of_a_task_that_died_is_made_anew() -> None:
    world = World(slot=Slot("pgoutput", "d", None, 1, is_lost=False, holder=""))
    await place(world)
    assert world.said[:5] == ["fence", "find", "look for the slot", "drop", "export"]


async def test_a_slot_that_another_program_reads_stays() -> None:
    world = World(slot=Slot("pgoutput", "d", 77, 1, is_lost=False, holder="psql"))
    with pytest.raises(RetriableError, match="read by psql"):
        await place(world)
    assert world.said == ["fence", "find", "look for the slot"]


@pytest.mark.parametrize(("version", "export"), [(170_000, "export, failover"), (160_009, "export")])
async def test_a_slot_for_standbys(version: int, export: str) -> None:
    world = World(version=version)
    await place(world, slot_failover=True)
    assert world.said[3] == export


@pytest.mark.parametrize(
    ("table", "given"),
    [
        (Table(1, "public", "orders", "d", readable=False), {}),
        (TABLE, {"snapshot_include_collection_list": ("public.other",)}),
    ],
)
async def test_where_no_rows_are_wanted_nothing_is_begun(table: Table, given: Any) -> None:
    world = World(positions=[None])
    assert await place(world, [table], **given) == Place("7", 16)
    assert world.said[-2:] == ["export", "fence"]
    assert not world.jobs_begun


async def test_what_a_job_says_is_told_once() -> None:
    world = World(positions=[None] * 6 + [READ], states=[RUNS, RUNS, None, RUNS, JobState("it ends")])
    await place(world)
    assert world.told == [Event(SNAPSHOT, "it runs"), Event(SNAPSHOT, "it ends")]


async def test_a_job_that_is_done_was_never_failed() -> None:
    """It commits the position before it ends, and the position is looked for behind the job."""
    world = World(positions=[None, READ], states=[JobState("it is COMPLETED", ended=True)])
    assert await place(world) == READ
    assert world.said[-4:] == ["held", "look", "find", "end"]
    assert world.told == []


async def test_a_job_that_ends_without_its_work_fails_the_task_and_says_why() -> None:
    world = World(positions=[None], states=[RUNS, JobState("the SparkApplication x was deleted", ended=True)])
    with pytest.raises(JobFailed, match="the SparkApplication x was deleted, and the tables are not in their topics"):
        await place(world)
    assert world.said[-1] == "end"


async def test_a_job_of_which_nothing_is_known_is_waited_for() -> None:
    world = World(positions=[None] * 10 + [READ], states=[None])
    assert await place(world) == READ
    assert world.said.count("look") == 10


async def test_a_snapshot_that_is_lost_ends_the_job() -> None:
    world = World(positions=[None], lost_after=2)
    with pytest.raises(RetriableError, match="connection is lost"):
        await place(world)
    assert world.said[-2:] == ["held", "end"]


async def test_a_job_that_may_have_been_begun_is_ended() -> None:
    """The answer was lost, say."""
    world = World(positions=[None], refuses=RetriableError("no answer"))
    with pytest.raises(RetriableError, match="no answer"):
        await place(world)
    assert world.said[-2:] == ["start", "end"]


async def test_a_task_that_stops_ends_its_job() -> None:
    world = World(positions=[None], holds=asyncio.Event())
    assert world.holds is not None
    running = asyncio.ensure_future(place(world))
    await world.holds.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert world.said[-2:] == ["held", "end"]


@pytest.mark.parametrize("without", ["units", "jobs"])
def test_without_a_cluster_it_is_refused(without: str) -> None:
    source = PostgresSource(SourceSettings("shop", "shop", "db", "d", "u", snapshot_engine="spark"))
    outside: Any = World()
    source.units, source.jobs = outside, outside
    setattr(source, without, None)
    with pytest.raises(InvalidConfig, match="needs a cluster"):
        Exporter(source, outside, outside, SPLIT)

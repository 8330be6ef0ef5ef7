"""Another version of a program, and an app that begins anew, with the real command: what stays, and what does not."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import orjson
import pytest

from headrace.testing import TestCluster, started_cluster
from headrace_streams.testing.driver import Driver
from headrace_streams.worker_process import Ending

from .apps import end, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

COUNTS = """
from headrace.streams import App, agg, col, string, value

app = App("{app}")
words = app.stream("{lines}", value=string, key="word")
{filter}
words.group_by("word").agg({aggregate}, name="counts", emit="every").to("{out}")
{more}
"""
NUMBERS = """
def number(row, state, context):
    state.seen += 1
    return {{"word": row["word"], "seen": state.seen}}

words.process(number, name="numbers", state={{"seen": value(int)}}).to("{out}")
"""
LIFTED = """
from headrace.streams import versioned

def number(row, state, context):
    state.tenfold += 10
    return {{"word": row["word"], "tenfold": state.tenfold}}

state = versioned({{"tenfold": value(int)}}, version=2, migrate={{1: lambda kept: {{"tenfold": 10 * kept["seen"]}}}})
numbers = words.process(number, name="numbers", state=state, schema="word string, tenfold bigint")
numbers.to("{out}", headers={{"of": col("word")}})
"""
HOP = """
from headrace.streams import App, agg, col, string

app = App("{app}")
words = app.stream("{lines}", value=string).select(word=col("value"))
words.group_by("word", name="by-word").agg(n=agg.count(), name="counts", emit="every").to("{out}")
"""


@dataclass
class Changing:
    """An app whose program changes."""

    cluster: TestCluster
    directory: Path
    name: str
    lines: str
    out: str

    @property
    def servers(self) -> str:
        return ",".join(self.cluster.bootstrap_servers)

    def program(
        self, text: str = COUNTS, *, filter: str = "", aggregate: str = "n=agg.count()", more: str = ""
    ) -> Path:
        """A version of the program."""
        named = {"app": self.name, "lines": self.lines, "out": self.out}
        whole = text.format(**named, filter=filter, aggregate=aggregate, more=more.format(**named))
        path = self.directory / f"program_{sha256(whole.encode()).hexdigest()[:8]}.py"
        path.write_text(whole)
        return path

    def start(self, program: Path, state: str = "state", **more: int) -> subprocess.Popen[bytes]:
        settings = more | {
            "bootstrap_servers": self.servers,
            "state_dir": str(self.directory / state),
            "transaction_timeout_ms": 5_000,
        }
        command = [sys.executable, "-m", "headrace_streams", str(program), json.dumps(settings)]
        with (self.directory / "workers.log").open("ab") as log:
            env = os.environ | {"HEADRACE_FAILPOINTS_DIR": str(self.directory)}
            return subprocess.Popen(command, stdout=log, stderr=log, env=env)

    @contextmanager
    def running(self, program: Path, state: str = "state") -> Iterator[None]:
        """A worker, which commits at the end."""
        worker = self.start(program, state)
        try:
            yield
            worker.terminate()
            assert worker.wait(30) == Ending.DONE, self.log()
        finally:
            end(worker)

    def fails(self, program: Path, **more: int) -> str:
        """What a worker says that is not to start."""
        before = len(self.log())
        worker = self.start(program, **more)
        try:
            assert worker.wait(60) == Ending.FAILED, self.log()
        finally:
            end(worker)
        return self.log()[before:]

    def log(self) -> str:
        path = self.directory / "workers.log"
        return path.read_text() if path.exists() else ""

    def command(self, *args: str, **env: str) -> subprocess.CompletedProcess[str]:
        """``headrace streams …``."""
        whole = [sys.executable, "-m", "headrace_cli", "-b", self.servers, "-o", "json", "streams", *args]
        return subprocess.run(whole, capture_output=True, text=True, timeout=120, check=False, env=os.environ | env)

    def done(self, *args: str) -> Any:
        """What the command prints, when all is well."""
        ran = self.command(*args)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    def differs(self, program: Path) -> list[dict[str, str]]:
        """What ``plan`` says."""
        changes: list[dict[str, str]] = json.loads(self.command("plan", str(program)).stdout)["changes"]
        return changes

    def join(self) -> None:
        """Wait until a worker is a member."""
        with self.cluster.admin() as admin:
            wait_until(
                lambda: [g for g in admin.list_groups().groups if g.group_id == self.name and g.members],
                "a worker is there",
                self.log,
            )

    def settle(self) -> None:
        """Wait until nothing is left to be read."""
        with self.cluster.admin() as admin:
            wait_until(lambda: not any(lag.lag for lag in admin.group_lag(self.name).values()), "all is read", self.log)

    def send(self, words: str) -> None:
        """Each word is a record, and its key."""
        with self.cluster.producer() as producer:
            producer.send_many(
                self.lines, [w.encode() for w in words.split()], keys=[w.encode() for w in words.split()]
            )
            producer.flush()

    def read(self, count: int, field: str = "n") -> list[tuple[str, int]]:
        """Words and numbers of the output, once there are so many."""
        found: list[tuple[str, int]] = []
        with self.cluster.consumer(
            self.out, auto_offset_reset="earliest", isolation_level="read_committed"
        ) as consumer:

            def enough() -> bool:
                rows = [orjson.loads(record.value) for record in consumer.poll(timeout_ms=500)]
                found.extend((row["word"], row[field]) for row in rows if field in row)
                return len(found) >= count

            wait_until(enough, f"{count} rows with {field} are in {self.out}", self.log)
        assert len(found) == count, found
        return sorted(found)

    def kept(self) -> dict[str, Any]:
        """What the cluster has of it."""
        with self.cluster.admin() as admin:
            topics = {t.name: t.topic_id for t in admin.list_topics() if t.name.startswith(self.name)}
            return {
                "topics": topics,
                "positions": {tp: at.committed_offset for tp, at in admin.group_lag(self.name).items()},
            }


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("streams") / "data") as started:
        yield started


@pytest.fixture
def app(cluster: TestCluster, tmp_path: Path) -> Changing:
    lines = cluster.unique_topic("lines", 2)
    return Changing(cluster, tmp_path, f"{lines}-app", lines, cluster.unique_topic("out", 1))


def numbered(*words: str) -> list[tuple[str, int]]:
    """Each word with how often it was there."""
    counted: Counter[str] = Counter()
    found = []
    for word in words:
        counted[word] += 1
        found.append((word, counted[word]))
    return sorted(found)


# --- change -----------------------------------------------------------------------------------------------------------


def test_one_more_step_and_one_more_store_keep_the_state_and_roll_back(app: Changing) -> None:
    first = app.program()
    app.send("a b a")
    with app.running(first):
        app.read(3)
    assert app.done("plan", str(first)) == {"changes": []}
    described = app.directory / "first.json"
    described.write_text(json.dumps(app.done("describe", str(first))))

    then = app.program(filter="words = words.filter(col('value') != 'b')", more=NUMBERS)
    changes = app.done("plan", str(then), "--against", str(described))["changes"]
    assert {change["fate"] for change in changes} == {"safe"}
    assert any(change["what"].startswith("+ filter") for change in changes)
    (new,) = app.done("plan", str(then))["changes"]
    assert (new["fate"], new["what"]) == ("safe", "the state 'numbers' is new and begins empty")
    app.send("a b c")
    with app.running(then):
        assert app.read(5) == numbered("a", "b", "a", "a", "c")
        app.read(2, "seen")

    back = app.program()
    (gone,) = app.done("plan", str(back))["changes"]
    assert (gone["fate"], gone["do"]) == ("safe", f"headrace streams reset {app.name} --store numbers deletes it")
    app.send("b a")
    with app.running(back):
        assert app.read(7) == numbered("a", "b", "a", "a", "c", "b", "a")

    again = app.program(filter="words = words.filter(col('value') != 'b')", more=NUMBERS)
    app.send("a")
    with app.running(again):
        assert app.read(3, "seen") == [("a", 1), ("a", 2), ("c", 1)], "what the program in between did not have"


def test_values_of_a_function_are_lifted(app: Changing) -> None:
    """From a disk and from the changelog; what is written has the headers that the program says."""
    app.send("a b a")
    with app.running(app.program(more=NUMBERS)):
        app.read(3, "seen")
    then = app.program(more=LIFTED)
    changes = app.done("plan", str(then))["changes"]
    assert [(change["fate"], change["what"][:41]) for change in changes] == [
        ("safe", "the values of 'numbers' are lifted from v")
    ]
    app.send("a c")
    with app.running(then):
        assert app.read(2, "tenfold") == [("a", 30), ("c", 10)]
    app.send("b")
    with app.running(then, "another-disk"):
        assert app.read(3, "tenfold") == [("a", 30), ("b", 20), ("c", 10)]
    with app.cluster.consumer(app.out, auto_offset_reset="earliest", isolation_level="read_committed") as consumer:
        found = {(record.key, tuple(record.headers)) for record in consumer.read_to_end() if b"tenfold" in record.value}
    assert found == {(word, (("of", word),)) for word in (b"a", b"b", b"c")}
    assert "the values of 'numbers' are of version 2; the program has version 1" in app.fails(app.program(more=NUMBERS))


def test_a_change_that_cannot_keep_the_state_is_refused_with_what_differs(app: Changing) -> None:
    app.send("a")
    with app.running(app.program()):
        app.read(1)
    other = app.program(aggregate="n=agg.max('value')")
    ran = app.command("plan", str(other))
    assert ran.returncode == 1
    (change,) = json.loads(ran.stdout)["changes"]
    assert change["fate"] == "needs"
    assert change["what"].startswith("the state 'counts' is kept as n=count() as int64")
    assert "; the program wants n=max() as " in change["what"]
    assert change["do"].startswith(f"headrace streams reset {app.name} --store counts")
    assert "the state 'counts' is kept as n=count() as int64" in app.fails(other)
    with app.running(app.program()):
        app.send("a")
        assert app.read(2) == numbered("a", "a")


def test_a_program_that_cannot_keep_the_state_leaves_the_one_that_runs_alone(app: Changing) -> None:
    """As a member it would get the task before the repartition, and send rows that the other one does not know."""
    app.send("a b")
    with app.running(app.program(HOP)):
        app.read(2)
        other = HOP.replace("n=agg.count()", "n=agg.count(), last=agg.max('word')")
        assert "the state 'counts' is kept as n=count() as int64" in app.fails(app.program(other))
        app.send("a")
        assert app.read(3) == numbered("a", "b", "a")


NARROW = HOP.replace('group_by("word", name="by-word")', 'key_by("word").repartition(name="by-word").group_by("word")')
WIDER = NARROW.replace('word=col("value")', 'word=col("value"), more=col("value")')
"""Its state is kept as before; its rows have one column more."""


def test_a_program_whose_rows_have_other_columns_leaves_the_one_that_runs_alone(app: Changing) -> None:
    """Both would meet rows that they do not know, and nothing but a reset would help."""
    with app.running(app.program(NARROW)):
        app.join()
        refused = app.fails(app.program(WIDER), default_api_timeout_ms=5_000)
        assert f"another version of {app.name} runs: its workers send rows with the columns word string to" in refused
        (change,) = app.differs(app.program(WIDER))
        assert change["fate"] == "needs"
        assert change["what"].startswith(f"rows in {app.name}.by-word.repartition have the columns word string; the ")
        other = app.differs(app.program(COUNTS.replace("{lines}", app.out)))[0]
        assert other["fate"] == "refused"
        assert other["what"].startswith(f"another program runs as {app.name}: its workers share the tasks ")
        app.send("a b a")
        assert app.read(3) == numbered("a", "b", "a")
        app.settle()
    assert app.differs(app.program(WIDER)) == []
    with app.running(app.program(WIDER)):
        app.send("a")
        assert app.read(4) == numbered("a", "b", "a", "a")


def test_of_two_that_start_at_once_one_waits_for_the_other(app: Changing) -> None:
    """Both look before either is a member, or one looks first: the group lets one in."""
    programs = [app.program(NARROW), app.program(WIDER)]
    workers = [app.start(program, f"state-{n}", default_api_timeout_ms=5_000) for n, program in enumerate(programs)]
    try:
        (lost,) = wait_until(lambda: [w for w in workers if w.poll() is not None], "one has given up", app.log)
        assert lost.returncode == Ending.FAILED, app.log()
        assert f"another version of {app.name} runs: its workers send rows with the columns" in app.log()
        app.send("a b a")
        assert app.read(3) == numbered("a", "b", "a")
    finally:
        for worker in workers:
            end(worker)


def test_rows_that_wait_are_left_to_the_program_that_sent_them(app: Changing) -> None:
    worker = app.start(app.program(NARROW))
    try:
        app.send("b")
        app.read(1)
        app.settle()
        (app.directory / "streams.committed").write_text("kill")  # what it sends is in the topic then, and not read
        app.send("a a")
        assert worker.wait(60) == -9, app.log()
    finally:
        end(worker)
    (change,) = app.differs(app.program(WIDER))
    assert change["what"].startswith(f"rows in {app.name}.by-word.repartition have the columns word string; the ")
    assert f"rows wait in {app.name}.by-word.repartition" in app.fails(app.program(WIDER))
    with app.running(app.program(NARROW)):
        assert app.read(3) == numbered("a", "b", "a")
        app.settle()
    with app.running(app.program(WIDER)):
        app.send("b")
        assert app.read(4) == numbered("a", "b", "a", "b")


def test_rows_of_a_transaction_that_is_not_decided_are_waited_for(app: Changing) -> None:
    """So is what a worker has committed whose markers have not come yet, since a leader is down."""
    narrow, hop = app.program(NARROW), f"{app.name}.by-word.repartition"
    with app.running(narrow):
        app.send("a")
        app.read(1)
        app.settle()
    driver = Driver(runpy.run_path(str(narrow))["app"])
    driver.pipe(app.lines, [{"value": "a"}])
    driver.commit()
    (row,) = [row["value"] for row in driver.read_raw(hop)]
    with app.cluster.producer(transactional_id=f"{app.name}-before") as producer:
        producer.begin_transaction()
        producer.send(hop, row, partition=0)
        producer.flush()
        worker = app.start(app.program(WIDER))
        try:
            app.join()
            app.send("b")
            with app.cluster.consumer(app.out) as consumer:
                assert len(consumer.poll(timeout_ms=30_000)) == 1
                assert not consumer.poll(timeout_ms=2_000), app.log()
            producer.commit_transaction()
            assert worker.wait(60) == Ending.FAILED, app.log()
            assert f"rows wait in {hop}" in app.log()
        finally:
            end(worker)
    with app.running(narrow):
        assert app.read(3) == numbered("a", "a", "b")


# --- reset ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", [COUNTS, HOP])
def test_a_reset_is_planned_and_then_carried_out(app: Changing, text: str) -> None:
    program = app.program(text)
    app.send("a b a")
    with app.running(program):
        app.read(3)
    before = app.kept()
    steps = app.done("reset", app.name)
    assert not steps["executed"]
    assert app.kept() == before
    deleted = {step["topic"] for step in steps["steps"] if step["step"] == "delete"}
    assert deleted == set(before["topics"])

    assert app.done("reset", app.name, "--execute") == steps | {"executed": True}
    assert app.kept() == {"topics": {}, "positions": {}}
    app.send("b b b")
    with app.running(program, "another"):  # so the changelogs become longer than they were
        assert app.read(9) == sorted([*numbered("a", "b", "a"), *numbered("a", "b", "a", "b", "b", "b")])
    app.send("a")
    with app.running(program):  # the directory from before the reset
        numbers = [*numbered("a", "b", "a"), *numbered("a", "b", "a", "b", "b", "b", "a")]
        assert app.read(10) == sorted(numbers)
    assert not set(app.kept()["topics"].values()) & set(before["topics"].values())


@pytest.mark.parametrize(("text", "to"), [(COUNTS, "latest"), (HOP, "2100-01-01T00:00:00Z")])
def test_a_reset_to_the_end_begins_there_without_state(app: Changing, text: str, to: str) -> None:
    program = app.program(text)
    app.send("a b a")
    with app.running(program):
        app.read(3)
    app.send("lost lost")
    app.done("reset", str(program), "--to", to, "--execute")
    app.send("a c")
    with app.running(program):
        assert app.read(5) == sorted([*numbered("a", "b", "a"), *numbered("a", "c")])


def test_offsets_of_a_file(app: Changing) -> None:
    program = app.program()
    app.send("a a a a")
    with app.running(program):
        app.read(4)
    (at,) = [tp for tp, end in app.kept()["positions"].items() if end == 4]
    offsets = app.directory / "offsets.csv"
    offsets.write_text(f"{at.topic},{at.partition},3\n")
    app.done("reset", str(program), "--from-file", str(offsets), "--execute")
    with app.running(program):
        assert app.read(5) == sorted([*numbered("a", "a", "a", "a"), ("a", 1)])


def test_one_store_begins_empty_and_positions_stay(app: Changing) -> None:
    program = app.program(more=NUMBERS)
    app.send("a b a")
    with app.running(program):
        app.read(3)
        app.read(3, "seen")
    before = app.kept()
    reset = ["reset", app.name, "--store", "numbers", "--execute"]
    (app.directory / "sdk.txn.end.before").write_text("kill")
    assert app.command(*reset, HEADRACE_FAILPOINTS_DIR=str(app.directory)).returncode == -9
    steps = app.done(*reset)["steps"]
    assert {step["step"] for step in steps} == {"drop"}
    assert app.kept() == before
    app.send("a b")
    with app.running(program):  # its directory follows the changelog
        assert app.read(5) == numbered("a", "b", "a", "a", "b")
        assert app.read(5, "seen") == sorted([*numbered("a", "b", "a"), *numbered("a", "b")])


def test_a_store_of_another_form_begins_empty_after_a_reset_of_it(app: Changing) -> None:
    app.send("a b")
    with app.running(app.program()):
        app.read(2)
    other = app.program(aggregate="n=agg.count(), last=agg.last('value')")
    app.fails(other)
    app.done("reset", app.name, "--store", "counts", "--execute")
    assert app.done("plan", str(other))["changes"] == [
        {"fate": "safe", "what": "the state 'counts' is new and begins empty", "do": None}
    ]
    app.send("a")
    with app.running(other):
        assert app.read(3) == sorted([("a", 1), ("b", 1), ("a", 1)])


def test_an_app_that_runs_is_not_reset(app: Changing) -> None:
    program = app.program()
    app.send("a")
    with app.running(program):
        app.read(1)
        for args in (["--store", "counts"], []):
            ran = app.command("reset", app.name, *args, "--execute")
            assert ran.returncode == 1
            assert f"the app {app.name} runs: its group has 1 member" in ran.stderr
        app.send("a")
        assert app.read(2) == numbered("a", "a")
        (task, _) = app.done("tasks", app.name)["tasks"]
        assert task["owner"]
    with app.running(program):
        app.send("a")
        assert app.read(3) == numbered("a", "a", "a")


def test_an_app_whose_topics_would_be_another_ones_is_refused_and_leaves_that_alone(app: Changing) -> None:
    program = app.program(HOP.replace("by-word", "b.x"))
    other = replace(app, name=f"{app.name}.b")
    second = other.program(HOP.replace("by-word", "x"))
    said = f"belongs to the app {app.name}, and {other.name} would use it too"
    app.send("a")
    with app.running(program):
        app.read(1)
        assert said in other.fails(second)
        assert [(change["fate"], said in change["what"]) for change in other.differs(second)[:2]] == [
            ("refused", True)
        ] * 2
        for named in (other.name, str(second)):
            assert other.command("reset", named, "--execute").returncode
    app.send("a")
    with app.running(program):
        assert app.read(2) == numbered("a", "a")
    assert said in other.fails(second)
    assert other.command("reset", str(second), "--execute").returncode


@pytest.mark.parametrize("point", ["mark", "delete", "forget", "place"])
def test_a_reset_that_is_cut_off_is_named_and_mended(app: Changing, point: str) -> None:
    program = app.program(HOP if point == "delete" else COUNTS)
    app.send("a b")
    with app.running(program):
        app.read(2)
    where = ["--to", "latest"] if point == "place" else []
    (app.directory / f"streams.reset.{point}").write_text("kill")
    ran = app.command("reset", str(program), *where, "--execute", HEADRACE_FAILPOINTS_DIR=str(app.directory))
    assert ran.returncode == -9
    assert f"a reset of {app.name} has begun and not ended: wait for it, or" in app.fails(program)
    if point == "mark":
        ran = app.command("plan", str(program))
        assert json.loads(ran.stdout)["changes"][0]["what"] == "a reset has begun and not ended"
    app.done("reset", str(program), *where, "--execute")
    app.send("a")
    with app.running(program):
        again = ["a"] if where else ["a", "b", "a"]
        assert app.read(2 + len(again)) == sorted([*numbered("a", "b"), *numbered(*again)])


@pytest.mark.parametrize("text", [COUNTS, HOP])
def test_a_topic_that_was_made_anew_needs_a_reset(app: Changing, text: str) -> None:
    program = app.program(text)
    app.send("a b")
    with app.running(program):
        app.read(2)
    with app.cluster.admin() as admin:
        admin.delete_topic(app.lines)
        admin.create_topic(app.lines, 2)
    assert f"the topic {app.lines} was deleted and made anew" in app.fails(program)
    ran = app.command("plan", str(program))
    (change,) = json.loads(ran.stdout)["changes"]
    assert (change["fate"], change["do"]) == ("needs", f"headrace streams reset {app.name} begins anew")
    app.done("reset", app.name, "--execute")
    app.send("a")
    with app.running(program):
        assert app.read(3) == sorted([*numbered("a", "b"), ("a", 1)])


@pytest.mark.parametrize("gone", ["changelog", "changelog repartition"])
def test_state_that_is_gone_needs_a_reset(app: Changing, gone: str) -> None:
    """Also where the group's positions in the repartition topic went with it."""
    program = app.program(HOP)
    app.send("a b")
    with app.running(program):
        app.read(2)
    with app.cluster.admin() as admin:
        for kind in gone.split():
            admin.delete_topic(f"{app.name}.by-word.{kind}")
        said = f"{app.name}.by-word.changelog, does not exist"
        assert said in app.fails(program)
        (change,) = app.differs(program)
        assert (change["fate"], said in change["what"]) == ("needs", True)
        assert f"{app.name}.by-word.changelog" not in [topic.name for topic in admin.list_topics()]
    app.done("reset", str(program), "--to", "latest", "--execute")
    app.send("a")
    with app.running(program):
        assert app.read(3) == sorted([*numbered("a", "b"), ("a", 1)])


def test_a_topic_that_is_deleted_while_it_is_read_ends_the_app(app: Changing) -> None:
    program = app.program(HOP)
    app.send("a b")
    worker = app.start(program, metadata_max_age_ms=200, default_api_timeout_ms=5_000)
    try:
        app.read(2)
        with app.cluster.admin() as admin:
            admin.delete_topic(app.lines)
        assert worker.wait(60) == Ending.FAILED, app.log()
    finally:
        end(worker)
    said = f"reads topics that were deleted: {app.lines}; "
    assert app.log().count(f"{said}it stops in 5 s if they stay away") == 1
    assert f"{said}stop its workers, create them again" in app.log()


# --- what there is ----------------------------------------------------------------------------------------------------


def test_apps_and_tasks(app: Changing) -> None:
    program = app.program(HOP)
    app.send("a b c d e f g a")  # some for each task behind the repartition: one without rows has no position yet
    with app.running(program):
        app.read(8)
    app.send("a")
    (found,) = [one for one in app.done("list")["apps"] if one["app"] == app.name]
    assert found == {"app": app.name, "members": 0, "changelogs": 1, "repartitions": 1}
    tasks = app.done("tasks", app.name)["tasks"]
    assert {task["task"] for task in tasks} == {f"{app.lines}/0", f"{app.lines}/1", "by-word/0", "by-word/1"}
    assert sum(task["lag"] for task in tasks) == 1
    assert all({"watermark", "held_back_by"} <= task.keys() for task in tasks)


def test_what_cannot_be_reset_so_is_said(app: Changing) -> None:
    program = app.program()
    app.send("a")
    with app.running(program):
        app.read(1)
    before = app.kept()
    for code, said, args in (
        (3, "there is no app 'nothing-of-this-name' here", ["nothing-of-this-name"]),
        (3, f"{app.name} has no state 'n'; it has counts", [app.name, "--store", "n"]),
        (2, "give the program in place of the name", [app.name, "--to", "latest"]),
        (2, "'yesterday'", [str(program), "--to", "yesterday"]),
        (2, "give one of --to, --from-file and --store", [app.name, "--to", "latest", "--store", "counts"]),
    ):
        ran = app.command("reset", *args, "--execute")
        assert (ran.returncode, said in " ".join(ran.stderr.split())) == (code, True), ran.stderr
    assert app.kept() == before

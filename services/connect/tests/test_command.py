"""``headrace connect apply``, ``list``, ``status``, …, over the real REST interface of a worker in memory."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer
from services.connect.tests.kit.rest import make_app, make_verifying
from services.connect.tests.kit.twin import ME, TwinForwarding, TwinHerd, TwinHosts
from typer.testing import CliRunner

from headrace_cli import workers
from headrace_cli.app import app
from headrace_cli.commanding import add_shared_options
from headrace_cli.commands import connect_apply, connect_verify, connect_workers
from headrace_cli.session import Session
from headrace_cli.workers import NobodyThere, NotNow, Workers
from headrace_common.core.ids import Endpoint
from headrace_common.http.protocol import HttpBounds
from headrace_common.http.server import HttpServer
from headrace_common.runtime.tasks import TaskRunner
from headrace_connect_worker.core.events import Happened
from headrace_connect_worker.core.records import RunState, TargetState
from headrace_connect_worker.ports import ConnectorOffset
from headrace_connect_worker.rpc.answering import refuse_connection

runner = CliRunner()
commands = typer.Typer(rich_markup_mode=None)
"""Those of workers alone: the parser of all is made anew for each line."""
connect_workers.register(commands)
add_shared_options(commands)
BOUNDS = HttpBounds(
    connections_max=100,
    connections_per_address_max=0,
    head_ms_max=10_000,
    body_ms_max=10_000,
    refusal=refuse_connection,
)


@dataclass
class Worker:
    """Who answers, and at which URL."""

    herd: TwinHerd
    hosts: TwinHosts
    url: str
    folder: Path

    def run(self, *words: str, code: int = 0) -> str:
        """What a command prints."""
        done = runner.invoke(commands, [*words, "--url", self.url])
        assert done.exit_code == code, done.output
        self.herd.follow()
        return done.output

    def data(self, *words: str, code: int = 0) -> Any:
        return json.loads(self.run(*words, "-o", "json", code=code))

    def file(self, **config: Any) -> str:
        path = self.folder / "connector.json"
        path.write_text(json.dumps({"name": "s", "connector.class": "FileStreamSource", "topic": "t", **config}))
        return str(path)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    herd, hosts = TwinHerd(), TwinHosts()
    served: Future[str] = Future()
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    async def serve() -> None:
        async with TaskRunner() as tasks, AsyncExitStack() as stack:
            rest = make_app(herd, hosts, TwinForwarding(), make_verifying(herd, hosts, tasks))
            listen = Endpoint("127.0.0.1", 0)
            server = await stack.enter_async_context(HttpServer.open(rest, listen, tasks, BOUNDS, drain_ms_max=1_000))
            served.set_result(f"http://{server.endpoint}")
            await stop.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        yield Worker(herd, hosts, served.result(60), tmp_path)
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(60)
        loop.close()


def test_apply_creates_and_changes(worker: Worker) -> None:
    file = worker.file(**{"batch.size": 5})
    planned = worker.data("apply", file, "--plan")
    assert (planned["action"], planned["problems"]) == ("create", [])
    assert not worker.herd.state.connectors
    assert worker.data("apply", file)["action"] == "create"
    assert "as it was" in worker.run("apply", file)
    file = worker.file(**{"file": "/data/a"})
    planned = worker.data("apply", file, "--plan")
    assert planned["changes"] == [
        {"key": "batch.size", "before": "5", "after": None},
        {"key": "file", "before": None, "after": "/data/a"},
    ]
    assert "changed, 2 keys" in worker.run("apply", file)
    assert worker.herd.state.connectors["s"].config["file"] == "/data/a"


def test_apply_says_what_is_wrong(worker: Worker) -> None:
    file = worker.file(**{"tpoic": "t", "file": "/etc/passwd"})
    assert "files.allowed.paths" in worker.run("apply", file, "--plan", code=1)
    assert "tpoic" in worker.run("apply", worker.file(**{"tpoic": "t"}), code=2)
    assert "has no name" in worker.run("apply", worker.file(name=""), code=2)


def test_apply_takes_several_and_prunes_what_no_file_has(worker: Worker) -> None:
    files = []
    for name in ("a", "b"):
        path = worker.folder / f"{name}.json"
        path.write_text(json.dumps({"name": name, "connector.class": "FileStreamSource", "topic": "t"}))
        files.append(str(path))
    worker.run("apply", worker.file())
    made = worker.data("apply", *files)["connectors"]
    assert [(one["name"], one["action"]) for one in made] == [("a", "create"), ("b", "create")]
    assert sorted(worker.herd.state.connectors) == ["a", "b", "s"]
    planned = worker.data("apply", *files, "--prune", "--plan")["connectors"]
    assert [(one["name"], one["action"]) for one in planned] == [("a", "none"), ("b", "none"), ("s", "delete")]
    assert "delete s?" in worker.run("apply", *files, "--prune", code=2)
    assert sorted(worker.herd.state.connectors) == ["a", "b", "s"]
    assert "s: deleted" in worker.run("apply", *files, "--prune", "--yes")
    assert sorted(worker.herd.state.connectors) == ["a", "b"]
    assert "name a FILE" in worker.run("apply", code=2)
    assert "another connector 'a'" in worker.run("apply", files[0], files[0], code=2)
    worker.run("apply", "--prune", "--yes")
    assert not worker.herd.state.connectors


def test_apply_goes_on_behind_a_file_that_is_wrong_and_prunes_nothing_then(worker: Worker) -> None:
    worker.run("apply", worker.file(name="old"))
    wrong = worker.folder / "wrong.json"
    wrong.write_text(json.dumps({"name": "wrong", "connector.class": "FileStreamSource", "tpoic": "t"}))
    said = worker.run("apply", str(wrong), worker.file(name="good"), "--prune", "--yes", code=2)
    assert "wrong: " in said
    assert "good: created" in said
    assert sorted(worker.herd.state.connectors) == ["good", "old"]


def test_apply_waits_for_a_worker_as_long_as_it_is_told(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.01)
    lines = ["apply", worker.file(), "--url", "http://127.0.0.1:1"]
    monkeypatch.setattr(connect_apply, "LEADER_SECONDS", float("inf"))
    assert runner.invoke(commands, lines).exit_code == 4, "it does not wait for one that is not there"
    assert runner.invoke(commands, [*lines, "--timeout", "0.05"]).exit_code == 4
    refuse_first(monkeypatch, [False, False, True])
    worker.run("apply", worker.file(), "--timeout", "0", code=1)
    worker.run("apply", worker.file())
    assert list(worker.herd.state.connectors) == ["s"]


def refuse_first(monkeypatch: pytest.MonkeyPatch, answers: Iterable[bool]) -> None:
    """What workers are asked is carried out, or is not possible now; behind these answers it is."""
    left, send = iter(answers), Workers._ask

    def later(self: Workers, *given: Any) -> Any:
        if not next(left, True):
            raise NotNow("not now")
        return send(self, *given)

    monkeypatch.setattr(Workers, "_ask", later)


def test_list_and_status(worker: Worker) -> None:
    assert worker.data("list") == {"connectors": []}
    worker.run("apply", worker.file())
    (row,) = worker.data("list")["connectors"]
    assert row == {
        "name": "s",
        "type": "source",
        "class": "FileStreamSource",
        "state": "RUNNING",
        "tasks": 1,
        "running": 1,
        "worker": ME,
    }
    worker.herd.run("s", RunState.FAILED, "Traceback (most recent call last):\n  File\nValueError: no such table\n")
    shown = runner.invoke(commands, ["status", "s", "--url", worker.url]).output
    assert "task 0" in shown
    assert "FAILED" in shown
    assert "ValueError: no such table" in shown
    assert "Traceback" not in shown
    assert "s" in worker.run("list")
    assert "not found" in worker.run("status", "nobody", code=3)


def test_targets_of_several(worker: Worker) -> None:
    worker.run("apply", worker.file())
    for word, target in (
        ("pause", TargetState.PAUSED),
        ("resume", TargetState.STARTED),
        ("stop", TargetState.STOPPED),
    ):
        assert worker.data(word, "s", "s") == {"connectors": [{"name": "s", "error": None}]}
        assert worker.herd.state.connectors["s"].target is target
    output = worker.run("resume", "nobody", "s", code=3)
    assert "s: resumed" in output, "the others are not left"


def test_restart(worker: Worker) -> None:
    worker.run("apply", worker.file())
    worker.run("restart", "s")
    worker.run("restart", "s", "--tasks", "--only-failed")
    worker.run("restart", "s", "--task", "0")
    assert worker.herd.restarts == [("s", True, (), False), ("s", True, None, True), ("s", False, [0], False)]
    worker.run("restart", "s", "--task", "0", "--tasks", code=2)
    worker.run("restart", "s", "--task", "7", code=3)


def test_offsets(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.run("apply", worker.file(file="/data/a"))
    worker.herd.kept["s"] = [ConnectorOffset({"split": "/data/a"}, {"at": 5})]
    assert '{"split": "/data/a"}' in worker.run("offsets", "s")
    file = worker.folder / "offsets.json"
    file.write_text(json.dumps(worker.data("offsets", "s")))
    assert "STOPPED" in worker.run("offsets", "s", "--set", str(file), code=2)
    worker.run("stop", "s")
    assert "altered successfully" in worker.run("offsets", "s", "--set", str(file))
    assert "--yes" in worker.run("offsets", "s", "--reset", code=2)
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.01)
    refuse_first(monkeypatch, [False, True, False, False])
    assert "altered successfully" in worker.run("offsets", "s", "--set", str(file)), "its tasks had not ended"
    assert "reset successfully" in worker.run("offsets", "s", "--reset", "--yes")
    assert "nothing is committed" in worker.run("offsets", "s")
    file.write_text("{")
    worker.run("offsets", "s", "--set", str(file), code=2)


def test_delete(worker: Worker) -> None:
    worker.run("apply", worker.file())
    assert "--yes" in worker.run("delete", "s", code=2)
    worker.run("delete", "s", "--dry-run")
    assert worker.herd.state.connectors
    assert "s: deleted" in worker.run("delete", "s", "--yes")
    assert not worker.herd.state.connectors
    worker.run("delete", "s", "--dry-run", code=3)


def test_names_with_what_paths_are_made_of(worker: Worker) -> None:
    worker.run("apply", worker.file(name="a/b ü%"))
    assert worker.data("status", "a/b ü%")["name"] == "a/b ü%"
    worker.run("delete", "a/b ü%", "--yes")


@pytest.mark.parametrize(
    ("url", "code", "says"),
    [
        ("http://127.0.0.1:1", 4, "no worker can be reached"),
        ("127.0.0.1:8083", 2, "no URL of a worker"),
        ("ftp://127.0.0.1", 2, "no URL of a worker"),
    ],
)
def test_nobody_is_there(url: str, code: int, says: str) -> None:
    done = runner.invoke(app, ["connect", "list", "--url", url])
    assert (done.exit_code, says in done.output) == (code, True), done.output


def test_verify_shows_ranges_that_do_not_agree(worker: Worker) -> None:
    worker.run("apply", worker.file())
    assert "nothing to compare" in worker.run("verify", "s", "--records", "7", "--topic", "t")
    assert worker.hosts.asked[-1][1][1:] == (("t",), 7, False)
    good = {"topic": "t", "partition": 0, "first": 0, "end": 5, "records": 5, "refused": 0, "missing": 0}
    good |= {"different": 0, "unexpected": 0, "repaired": 0, "examples": []}
    worker.hosts.ranges = [good, {**good, "first": 5, "end": 9, "missing": 2, "examples": [6, 7]}]
    said = worker.run("verify", "s")
    assert "they agree" in said
    assert "6, 7" in said
    assert "t-0" in said
    assert len(said.splitlines()) < len(worker.run("verify", "s", "--all").splitlines())
    worker.hosts.wrong = 2
    assert "2 wrong, 0 repaired" in worker.run("verify", "s", code=1)
    assert "stop s before" in worker.run("verify", "s", "--repair", code=1)
    worker.hosts.refuses = "Lines cannot be verified"
    assert "cannot be verified" in worker.run("verify", "s", code=2)


def test_verifications_are_listed(worker: Worker) -> None:
    assert "there are none" in worker.run("verifications")
    worker.run("verifications", "s", code=3)
    worker.run("apply", worker.file())
    worker.run("verify", "s")
    worker.hosts.wrong = 2
    worker.run("verify", "s", code=1)
    worker.hosts.refuses = "Lines cannot be verified"
    worker.run("verify", "s", code=2)
    lines = worker.run("verifications", "s").splitlines()
    assert ["cannot be verified" in lines[1], "2 wrong, 0 repaired" in lines[2], "they agree" in lines[3]] == [True] * 3
    found = worker.data("verifications")["verifications"]
    assert [(one["state"], one["agrees"]) for one in found] == [
        ("failed", None),
        ("completed", False),
        ("completed", True),
    ]
    assert f"{datetime.fromtimestamp(found[0]['at'] / 1_000, UTC):%Y-%m-%dT%H:%M}" in lines[1]


def test_verify_says_once_in_a_while_how_far_it_is(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.run("apply", worker.file())
    worker.hosts.slow = True
    monkeypatch.setattr(connect_verify, "SAY_SECONDS", 0.0)
    say = Session.say

    def says(self: Session, text: str) -> None:
        say(self, text)
        worker.hosts.slow = False

    monkeypatch.setattr(Session, "say", says)
    done = runner.invoke(commands, ["verify", "s", "-o", "json", "--url", worker.url])
    assert done.exit_code == 0, done.output
    assert "s: 40 of 100 offsets compared" in done.stderr
    assert json.loads(done.stdout)["agrees"] is True


@pytest.mark.parametrize(
    ("progress", "says"),
    [
        ((0, 0, 0), "asked for its positions"),
        ((2_000, 1_000, 0), "1,000 of 2,000 offsets read"),
        ((2_000, 2_000, 0), "0 of 2,000 offsets compared"),
        ((2_000, 0, 500), "500 of 2,000 offsets compared"),
    ],
)
def test_how_far_a_verification_is(progress: tuple[int, int, int], says: str) -> None:
    assert says in connect_verify.how_far(dict(zip(("offsets", "scanned", "compared"), progress, strict=True)))


def test_an_interrupted_verify_ends_it_on_the_workers(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.run("apply", worker.file())
    worker.hosts.slow = True
    asked: list[str] = []
    ask = Workers._ask

    def interrupted(self: Workers, method: str, *given: Any) -> Any:
        asked.append(method)
        if method == "GET" and asked.count("GET") == 2:
            signal.raise_signal(signal.SIGINT)
        return ask(self, method, *given)

    monkeypatch.setattr(Workers, "_ask", interrupted)
    assert runner.invoke(commands, ["verify", "s", "--url", worker.url]).exit_code == 130
    assert asked == ["POST", "GET", "GET", "DELETE"]
    assert not worker.hosts.verifying


def test_a_verify_that_is_interrupted_while_it_begins_ends_it_too(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.run("apply", worker.file())
    worker.hosts.slow = True
    asked: list[str] = []
    ask = Workers._ask

    def interrupted(self: Workers, method: str, *given: Any) -> Any:
        asked.append(method)
        if method == "POST":
            signal.raise_signal(signal.SIGINT)
        return ask(self, method, *given)

    monkeypatch.setattr(Workers, "_ask", interrupted)
    assert runner.invoke(commands, ["verify", "s", "--url", worker.url]).exit_code == 130
    assert asked == ["POST", "DELETE"]
    assert not worker.hosts.verifying


def test_verify_asks_again_while_nobody_answers(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    worker.run("apply", worker.file())
    monkeypatch.setattr(workers, "RETRY_SECONDS", 0.01)
    answers = iter([NotNow("nobody leads"), NobodyThere("no worker")])
    ask = Workers._ask

    def later(self: Workers, method: str, *given: Any) -> Any:
        if method == "GET" and (failure := next(answers, None)) is not None:
            raise failure
        return ask(self, method, *given)

    monkeypatch.setattr(Workers, "_ask", later)
    assert "nothing to compare" in worker.run("verify", "s")
    assert next(answers, None) is None


def test_snapshot_has_tables_read_again(worker: Worker) -> None:
    worker.run("apply", worker.file())
    assert "public.a, public.b" in worker.run("snapshot", "s", "a", "b")
    assert worker.data("snapshot", "s", "a") == {"name": "s", "tables": ["public.a"]}
    assert "not found" in worker.run("snapshot", "nobody", "a", code=3)


def test_events_are_shown(worker: Worker) -> None:
    worker.run("apply", worker.file())
    assert "nothing has happened" in worker.run("events", "s")
    worker.herd.happened.add(Happened("s", 1_700_000_000_000, "drift", "the table t: has a column more", 0))
    said = worker.run("events", "s", "--kind", "drift")
    assert "2023-11-14T22:13:20Z" in said
    assert "has a column more" in said
    assert worker.data("events", "s")["events"][0]["at"] == 1_700_000_000_000
    assert "nothing" in worker.run("events", "s", "--kind", "failed")

"""A tap as a process: its files, its end, its silence, and what is left of it when the task is gone."""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import aclosing, closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from libs.connect.tests.connectors.singer import tap_shop
from libs.connect.tests.connectors.singer.taps import settings, take, values_of
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.clock import give_way, limit_ms
from headrace_common.runtime.tasks import TaskRunner
from headrace_common.runtime.threads import run_in_thread
from headrace_connect.connectors.singer import SingerSource, process
from headrace_connect.connectors.singer.lines import Line, LineCutter
from headrace_connect.connectors.singer.output import Output
from headrace_connect.connectors.singer.process import Limits, TapProcess, find_program
from headrace_connect.connectors.singer.redacting import Redactor
from headrace_connect.connectors.singer.tap import TapFailed
from headrace_connect.core.names import PLUGIN_PATH
from headrace_connect.plugin import Chunk

TAP = str(Path(tap_shop.__file__))
WAIT_MS = 60_000


async def read(config: dict[str, Any], limits: Limits | None = None) -> list[Line]:
    """All that one run writes."""
    found: list[Line] = []
    async with aclosing(TapProcess(TAP, limits or Limits()).run(config, {})) as output:
        async for lines in output:
            found += lines
    return found


async def failure(do: dict[str, Any], limits: Limits | None = None) -> str:
    with pytest.raises(TapFailed) as failed:
        await read({"do": {"when": 3} | do, "password": "hunter2", "url": "http://hunter2@shop"}, limits)
    return str(failed.value)


async def test_a_tap_is_read_and_its_state_goes_back_to_it() -> None:
    source = SingerSource(settings(tap_executable=TAP, config={"state_every": "7"}, run_interval_ms=1))
    assert await source.check() == []
    chunks = await take(source)
    rows = [row["id"] for chunk in chunks for _, rows in values_of(chunk) for row in rows]
    assert sorted(rows) == [*range(20), *range(100, 110)]
    rest = await take(source, chunks[0].position)
    first = [row["id"] for _, rows in values_of(chunks[0]) for row in rows]
    assert sorted(first + [row["id"] for chunk in rest for _, rows in values_of(chunk) for row in rows]) == sorted(rows)


async def test_its_files_are_private_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_SECRET", "x")
    monkeypatch.setenv("LC_TEST", "y")
    await read({"do": {"when": 0, "what": "look", "file": str(tmp_path / "seen")}})
    seen = json.loads((tmp_path / "seen").read_text())
    assert seen["mode"] == "0o600"
    assert not Path(seen["config"]).parent.exists()
    assert Path(seen["cwd"]) == Path(seen["config"]).parent
    assert "SHOP_SECRET" not in seen["environment"]
    assert seen["environment"]["LC_TEST"] == "y"
    assert "PATH" in seen["environment"]
    assert "PYTHONPATH" not in seen["environment"]


async def test_failures_have_the_last_lines_without_secrets() -> None:
    said = await failure({"what": "exit", "code": 3})
    assert said == "the tap ended with 3; its last lines:\nlogin with [config.password] at [config.url]"
    assert (await failure({"what": "die"})).startswith("the tap was killed by SIGKILL; its last lines:\nlogin with [c")


async def test_one_that_is_silent_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "was silent for 300 ms, and was killed" in await failure({"what": "hang"}, Limits(silence_ms=300))
    monkeypatch.setattr(process, "_END_MS", 200.0)
    assert "closed its output and did not end for 200 ms" in await failure({"what": "close"})


@dataclass
class SetClock:
    """Satisfies ``Clock`` as far as a tap's process needs it."""

    now: float = 0.0

    def monotonic_ms(self) -> float:
        return self.now


async def test_its_log_is_a_sign_of_life() -> None:
    clock = SetClock()
    tap = TapProcess(TAP, Limits(silence_ms=100), clock)  # type: ignore[arg-type]
    output, log = Output(), Output()
    life = process._Life(SimpleNamespace(), output, log)  # type: ignore[arg-type]
    async with TaskRunner() as runner:
        reads = runner.start(tap._next(life), name="read")
        runner.start(tap._hear(life), name="hear")
        await give_way()
        clock.now = 99
        os.write(log.given, b"still here\n")
        while not life.errors:
            await give_way()
        assert life.heard_ms == 99
        clock.now = 198
        os.write(output.given, b"data")
        assert await reads == b"data"
        assert (life.heard_ms, list(life.errors)) == (99, ["still here"])
    async with TaskRunner() as runner:
        reads = runner.start(tap._next(life), name="read")
        await give_way()
        clock.now = 298
        with pytest.raises(TimeoutError):
            await reads
    output.close()
    log.close()


async def test_lines_that_are_too_long_and_floods() -> None:
    do = {"when": 3, "what": "print", "text": "x" * 1_000, "times": 5_000}
    lines = await read({"do": do}, Limits(line_bytes=2_000))
    [long] = [line for line in lines if line.cut]
    assert (long.bytes, long.number, long.text) == (5_000_000, 4, b"x" * 1_024)
    others = [json.loads(line.text)["type"] for line in lines if not line.cut]
    assert others.count("RECORD") == tap_shop.ROWS


async def test_discovery_has_a_limit() -> None:
    tap = TapProcess(TAP, Limits(discover_ms=500))
    with pytest.raises(TapFailed, match=r"discover\.timeout\.ms, 500 ms"):
        await tap.discover({"do": {"when": "discover", "what": "hang"}})
    tap = TapProcess(TAP, Limits())
    with pytest.raises(TapFailed, match="ended with 9"):
        await tap.discover({"do": {"when": "discover", "what": "exit", "code": 9}})
    assert [one["stream"] for one in json.loads(await tap.discover({}))["streams"]] == ["orders", "customers"]


async def wait_for_end(pid: int) -> None:
    """Until a process has ended, or is gone already."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        ended = await run_in_thread(lambda: select.select([handle], [], [], WAIT_MS / 1_000)[0])
    finally:
        os.close(handle)
    assert ended, "it still runs"


async def test_whoever_stops_reading_kills_it_with_its_children(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seen")
    config = {"do": {"when": 3, "what": "fork", "file": str(tmp_path / "seen")}}
    async with aclosing(TapProcess(TAP, Limits()).run(config, {})) as output:
        await anext(output)
        seen = json.loads(await run_in_thread((tmp_path / "seen").read_text))
    await wait_for_end(seen["child"])
    assert not Path(seen["config"]).parent.exists()


@pytest.mark.parametrize("apart", [False, True], ids=["in its group", "on its own"])
async def test_it_has_ended_though_a_process_that_it_has_started_holds_its_output(tmp_path: Path, apart: bool) -> None:
    do = {"when": 3, "what": "leave", "apart": apart}
    files = [tmp_path / "of one that ends", tmp_path / "of one that dies"]
    try:
        async with limit_ms(WAIT_MS):
            lines = await read({"do": do | {"file": str(files[0])}})
            assert [json.loads(line.text)["type"] for line in lines].count("RECORD") == tap_shop.ROWS
            assert json.loads(lines[-1].text)["type"] == "STATE"
            said = await failure(do | {"file": str(files[1]), "dies": True})
        assert said.startswith("the tap was killed by SIGKILL; its last lines:")
    finally:
        children = [int(file.read_text()) for file in files if file.exists()]
        for child in children if apart else ():
            os.kill(child, signal.SIGKILL)
    assert len(children) == 2
    for child in children:
        await wait_for_end(child)


async def test_what_others_write_when_it_has_ended_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_READ_BYTES", 4)
    ended = asyncio.Event()

    async def wait() -> int:
        await ended.wait()
        return 0

    with closing(Output()) as output, closing(Output()) as log:
        life = process._Life(SimpleNamespace(wait=wait), output, log)  # type: ignore[arg-type]
        async with TaskRunner() as runner:
            runner.start(life.wait(), name="wait")
            os.write(output.given, b"one\ntwo\nthr")
            assert await life.next() == b"one\n"
            ended.set()
            await life.gone.wait()
            assert await life.next() == b"two\nthr"
            os.write(output.given, b'{"type": "STATE"}\n')
            assert await life.next() == b""
            assert life.left_open


@pytest.mark.parametrize("apart", [False, True], ids=["in its group", "on its own"])
async def test_nothing_is_lost_where_it_dies_and_leaves_a_process(tmp_path: Path, apart: bool) -> None:
    do = {"when": 15, "what": "leave", "file": str(tmp_path / "child"), "dies": True, "apart": apart}
    source = SingerSource(settings(tap_executable=TAP, config={"do": json.dumps(do)}, run_interval_ms=1))
    [split] = await source.splits()
    chunks: list[Chunk] = []

    async def read_all() -> None:
        async for chunk in source.read(split, None):
            chunks.append(chunk)  # noqa: PERF401 - those before the failure count

    with pytest.raises(TapFailed, match="killed by SIGKILL"):
        await read_all()
    if apart:
        os.kill(int((tmp_path / "child").read_text()), signal.SIGKILL)
    assert chunks
    rest = await take(SingerSource(settings(tap_executable=TAP, run_interval_ms=1)), chunks[-1].position)
    read = [row["id"] for chunk in [*chunks, *rest] for _, rows in values_of(chunk) for row in rows]
    assert sorted(read) == [*range(20), *range(100, 110)]


async def test_others_have_their_turn_while_it_writes_faster_than_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_READ_BYTES", 4)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await give_way()
            turns += 1

    with closing(Output()) as output, closing(Output()) as log:
        life = process._Life(SimpleNamespace(), output, log)  # type: ignore[arg-type]
        os.write(output.given, b"x" * 400)
        os.write(log.given, b"x" * 400)
        async with TaskRunner() as runner:
            runner.start(count(), name="count")
            for _ in range(100):
                assert await life.next() == b"xxxx"
            assert turns >= 90
            for _ in range(100):
                assert await log.read(4) == b"xxxx"
        assert turns >= 190


async def test_half_a_line_is_its_own_only_where_nobody_else_can_write(tmp_path: Path) -> None:
    do = {"when": tap_shop.LAST, "what": "half", "file": str(tmp_path / "child")}
    lines = await read({"do": do})
    assert lines[-1].text == b'{"type": "STA'
    lines = await read({"do": do | {"what": "leave", "half": True}})
    assert json.loads(lines[-1].text)["type"] == "RECORD"


async def test_it_dies_with_a_task_that_is_killed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "seen")
    config = {"do": {"when": 3, "what": "fork", "file": str(tmp_path / "seen")}}
    program = (
        "import asyncio, sys, json\n"
        "from headrace_connect.connectors.singer.process import Limits, TapProcess\n"
        "async def main():\n"
        "    async for _ in TapProcess(sys.argv[1], Limits()).run(json.loads(sys.argv[2]), {}): pass\n"
        "asyncio.run(main())\n"
    )
    task = subprocess.Popen([sys.executable, "-c", program, TAP, json.dumps(config)])
    try:
        seen = json.loads(await run_in_thread((tmp_path / "seen").read_text))
        assert Path(seen["config"]).exists()
    finally:
        task.send_signal(signal.SIGKILL)
        task.wait()
    await wait_for_end(seen["child"])
    assert not Path(seen["config"]).parent.exists()


async def test_programs_are_found(tmp_path: Path) -> None:
    for name in ("env/bin", "folder/env/bin"):
        (tmp_path / name).mkdir(parents=True)
    wanted = tmp_path / "folder/env/bin/tap-mine"
    wanted.write_text("#!/bin/sh\nexit 0\n")
    variables = {PLUGIN_PATH: f"{tmp_path}/env,{tmp_path}/folder,{tmp_path}/nowhere", "PATH": "/usr/bin:/bin"}
    with pytest.raises(InvalidConfig, match="no program tap-mine in an environment of plugin_path"):
        find_program("tap-mine", variables)
    wanted.chmod(0o755)
    assert find_program("tap-mine", variables) == wanted
    (tmp_path / "env/bin/tap-mine").symlink_to(wanted)
    assert find_program("tap-mine", variables) == tmp_path / "env/bin/tap-mine"
    assert find_program("sh", variables).name == "sh"
    assert find_program(str(wanted), {}) == wanted
    for name in ("bin/tap", f"{tmp_path}/none", str(tmp_path), "./tap"):
        with pytest.raises(InvalidConfig, match="is an absolute path"):
            find_program(name, variables)
    [problem] = await SingerSource(settings(tap_executable="tap-none")).check()
    assert "no program tap-none" in problem


async def test_one_that_cannot_be_started(tmp_path: Path) -> None:
    program = tmp_path / "tap"
    program.write_text("#!/nowhere/python\n")
    program.chmod(0o755)
    with pytest.raises(TapFailed, match="cannot be started"):
        await TapProcess(str(program), Limits()).discover({})


@pytest.mark.parametrize("pieces", [[b"a\n", b"b\r\nc"], [b"a", b"\nb\r", b"\nc"], [b"a\n\n \nb\nc\n"]])
def test_lines(pieces: Sequence[bytes]) -> None:
    cutter = LineCutter(4)
    lines = [line for piece in pieces for line in cutter.feed(piece)] + list(cutter.finish())
    assert [line.text for line in lines] == [b"a", b"b", b"c"]
    assert not any(line.cut for line in lines)


def test_a_long_line_does_not_stay() -> None:
    cutter = LineCutter(4)
    assert list(cutter.feed(b"12345")) == []
    for _ in range(3):
        assert list(cutter.feed(b"x" * 100)) == []
    [long, short] = cutter.feed(b"\nabcd\n")
    assert (long.text, long.bytes, long.cut) == (b"12345", 305, True)
    assert (short.text, short.cut) == (b"abcd", False)


def test_what_is_hidden() -> None:
    hide = Redactor(
        {"token": "ab", "auth": {"client_secret": 'x"y\nlong-line'}, "start": "2024", "n": 5, "keys": ["long-enough"]}
    ).hide
    assert hide("ab 2024 5") == "[config.token] 2024 5"
    assert hide('{"client_secret": "x\\"y\\nlong-line"}') == '{"client_secret": "[config.auth.client_secret]"}'
    assert hide("and long-line of it") == "and [config.auth.client_secret] of it"
    assert hide("long-enough") == "[config.keys]"


def test_the_commands(tmp_path: Path) -> None:
    config = {"name": "shop", "connector.class": "singer", "tap.executable": TAP, "topic.pattern": "shop.{stream}"}
    file = tmp_path / "shop.json"
    file.write_text(json.dumps(config))
    done = CliRunner().invoke(app, ["connect", "validate", str(file), "-o", "json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"problems": []}
    done = CliRunner().invoke(app, ["connect", "preview", str(file), "--records", "3", "-o", "json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["records"]
    assert [(row["topic"], json.loads(row["value"])["id"]) for row in rows] == [
        ("shop.orders", 0), ("shop.orders", 1), ("shop.customers", 100)
    ]  # fmt: skip
    assert json.loads(rows[0]["key"]) == {"id": 0}
    file.write_text(json.dumps(config | {"stream.include.list": "shop-order"}))
    done = CliRunner().invoke(app, ["connect", "validate", str(file), "-o", "json"])
    assert done.exit_code == 1
    assert "is shop-orders meant?" in json.loads(done.stdout)["problems"][0]["problem"]

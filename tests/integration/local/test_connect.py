"""``headrace up --connect``: the quick start of ``docs/connect.md`` as it is written there, with real processes."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from headrace_cli.local.processes import ProcessId, wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]
PAGE = Path(__file__).parents[3] / "docs" / "connect.md"
SECONDS = 60
PREVIEW_S_MAX = 3.0
"""Of CPU: the machine may be busy with others."""


def headrace(here: Path, *words: str) -> str:
    command = [sys.executable, "-P", "-m", "headrace_cli", *words]
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
    assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def hosts_of(worker: int) -> list[ProcessId]:
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    found = [ProcessId.of(int(pid)) for pid in children]
    return [one for one in found if one is not None]


def test_the_quick_start_is_so(tmp_path: Path) -> None:
    page = PAGE.read_text()
    section = re.split(r"^## ", page, flags=re.MULTILINE)[1]
    [config] = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    [shell] = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    commands = [line.partition("#")[0].replace("/srv/shop", str(tmp_path)).split() for line in shell.splitlines()]
    (tmp_path / "shop.yaml").write_text(config.replace("/srv/shop", str(tmp_path)))
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    started, *between, ended = [words[1:] for words in commands if words[0] == "headrace"]
    assert started[:2] == ["up", "--connect"]
    assert ended == ["down"]
    try:
        assert "connect-1 " in headrace(tmp_path, *started, "--brokers", "1", "--detach")
        for words in between:
            if words[0] == "consume":
                said = headrace(tmp_path, *words)
                assert (said.count("one"), said.count("two")) == (1, 1)
            else:
                headrace(tmp_path, *words)
                if words[:2] == ["connect", "apply"]:
                    assert wait_until(lambda: runs(tmp_path), SECONDS), headrace(tmp_path, "connect", "status", "shop")
        state = json.loads(headrace(tmp_path, "status", "-o", "json"))
        [worker] = [process for process in state["processes"] if process["role"] == "connect"]
        assert (worker["name"], worker["state"], state["connect_url"]) == (
            "connect-1",
            "ready",
            f"http://{worker['http']}",
        )
        written = 'headrace_connect_written_records_total{connector="shop",task="0"} 2.0'
        assert wait_until(lambda: written in metrics(worker["metrics"]), SECONDS), metrics(worker["metrics"])
        running = [*hosts_of(worker["pid"]), ProcessId.of(worker["pid"])]
        assert len(running) == 2, "the worker, and one host"
    finally:
        headrace(tmp_path, "down")
    assert not [one for one in running if one is not None and one.alive()]
    log = (tmp_path / ".headrace" / "logs" / "supervisor.log").read_text()
    assert "did not stop in time" not in log


def test_a_preview_takes_a_moment(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "shop.yaml").write_text(
        f"name: shop\nconnector.class: files\npath: {tmp_path / 'in'}\nformat: lines\ntopic: shop\n"
    )
    used = cpu_s()
    assert "one" in headrace(tmp_path, "connect", "preview", "shop.yaml", "--records", "1")
    assert cpu_s() - used < PREVIEW_S_MAX


def cpu_s() -> float:
    """Of all processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def runs(here: Path) -> bool:
    status = json.loads(headrace(here, "connect", "status", "shop", "-o", "json"))
    return [task["state"] for task in status["tasks"]] == ["RUNNING"]


def metrics(address: str) -> str:
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
    return text

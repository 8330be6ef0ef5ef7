"""Live completion: names of the cluster that the line means, soon, or nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from services.broker.tests.kit.cluster import BROKER_ID


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    broker = BrokerThread({"orders": 1, "orders-late": 1, "flights": 1})
    yield broker.address
    broker.stop()


def completed(line: str, cwd: Path, **env: str) -> list[str]:
    """What bash is told for this line."""
    words = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    program = "from headrace_cli.app import app; app(prog_name='headrace')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, "XDG_CONFIG_HOME": str(cwd), **words, **env},
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("headrace topic describe -b ADDRESS ord", ["orders", "orders-late"]),
        ("headrace -b ADDRESS consume f", ["flights"]),
        ("headrace topic -b ADDRESS delete orders o", ["orders", "orders-late"]),
        ("headrace broker drain -b ADDRESS ", [str(BROKER_ID)]),
    ],
)
def test_names_of_the_cluster_that_the_line_means(address: str, tmp_path: Path, line: str, names: list[str]) -> None:
    assert completed(line.replace("ADDRESS", address), tmp_path) == names


def test_the_environment_names_it_too(address: str, tmp_path: Path) -> None:
    assert completed("headrace produce fl", tmp_path, HEADRACE_BOOTSTRAP=address) == ["flights"]


@pytest.mark.parametrize("what", ["consume ", "group describe ", "broker drain "])
def test_where_nobody_answers_there_is_nothing_and_no_noise(tmp_path: Path, what: str) -> None:
    assert completed(f"headrace -b 127.0.0.1:1 {what}", tmp_path) == []


def test_profiles(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[staging]\nbootstrap = "a:1"\n[prod]\nbootstrap = "b:1"\n')
    config = str(tmp_path / "config.toml")
    assert completed("headrace topic list --profile s", tmp_path, HEADRACE_CONFIG=config) == ["staging"]

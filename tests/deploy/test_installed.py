"""``pip install headrace``: what it brings, and that it does all that needs no tables, on a real cluster."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.deploy.test_images import ROOT, locked

from headrace.testing import TestCluster, started_cluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

SMALL = {"headrace", "headrace-common", "grpcio", "protobuf", "typing-extensions", "numpy", "crc32c", "cramjam"}
SCRIPT = Path(__file__).with_name("small_client.py")
UV = [sys.executable, "-m", "uv"]


class Environment:
    """A fresh one, with wheels of this tree in it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.wheels: dict[str, Path] = {}
        build = ["build", "-q", "--wheel", "--offline", "--no-build-isolation", "-o", str(directory / "wheels")]
        for name in ("headrace", "headrace-common"):
            source = ROOT / locked.read_members(ROOT)[name][0]
            subprocess.run([*UV, *build, str(source)], check=True, timeout=60)
            (self.wheels[name],) = (directory / "wheels").glob(f"{name.replace('-', '_')}-0*.whl")
        subprocess.run([*UV, "venv", "-q", "--python", sys.executable, str(directory / "env")], check=True, timeout=60)
        self.python = directory / "env" / "bin" / "python"

    def install(self, *extras: str) -> None:
        """What a user types, with the versions of the lock."""
        extra = f"[{','.join(extras)}]" if extras else ""
        wanted = [f"headrace{extra} @ {self.wheels['headrace'].as_uri()}"]
        common = f"headrace-common @ {self.wheels['headrace-common'].as_uri()}"
        asked = ["pip", "install", "-q", "--python", str(self.python), "-c", str(ROOT / "requirements.lock")]
        subprocess.run([*UV, *asked, *wanted, common], check=True, timeout=120)

    def packages(self) -> set[str]:
        listed = [*UV, "pip", "list", "--python", str(self.python), "--format", "json"]
        told = subprocess.run(listed, check=True, capture_output=True, text=True, timeout=60).stdout
        return {locked.normal(each["name"]) for each in json.loads(told)}

    def run(self, at: str, how: str) -> str:
        """The program, which sees nothing of this tree."""
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADRACE"))}
        ended = subprocess.run(
            [str(self.python), "-P", str(SCRIPT), at, how],
            cwd=self.directory,
            env=plain,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr[-3000:]
        return ended.stdout


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestCluster]:
    with started_cluster(tmp_path_factory.mktemp("installed-cluster") / "data", brokers=1, restart=False) as started:
        yield started


def test_it_is_small_and_does_everything_but_tables(environment: Environment, cluster: TestCluster) -> None:
    environment.install()
    assert environment.packages() == SMALL
    assert "all done" in environment.run(cluster.bootstrap_servers[0], "plain")


def test_tables_come_with_an_extra(environment: Environment, cluster: TestCluster) -> None:
    environment.install("arrow")
    assert environment.packages() == SMALL | {"pyarrow"}
    assert "all done" in environment.run(cluster.bootstrap_servers[0], "arrow")

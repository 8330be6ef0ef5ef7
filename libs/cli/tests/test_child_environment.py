"""
What programs that commands start are told of the cluster: as much as the command itself knows, and nothing that is
secret on a command line. And commands that ask the cluster themselves give clients all of it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace_connect.runtime.main
import headrace_streams
import headrace_verify.running
from headrace.finding import ClientCertificateFiles, ClusterAddress, bootstrap_addresses, credentialed
from headrace_cli.app import app
from headrace_cli.child_environment import child_environment
from headrace_cli.commands import connect, connect_run, streams
from headrace_cli.commands import job as job_commands
from headrace_cli.session import Session
from headrace_cli.spark import jobs, submit
from headrace_common.core.secret import Secret
from headrace_streams import worker_process

KEY = "hrk_canary"
OTHERS = {"HEADRACE_API_KEY": "hrk_other", "HEADRACE_API_KEY_FILE": "/of/another", "HEADRACE_CA": "/of/another.pem"}
runner = CliRunner()


def reached(cluster: ClusterAddress, env: Mapping[str, str], monkeypatch: pytest.MonkeyPatch) -> ClusterAddress:
    """As a client in the child reaches the same addresses."""
    told = child_environment(cluster, env)
    with monkeypatch.context() as patch:
        for name in OTHERS:
            patch.delenv(name, raising=False)
        for name, value in told.items():
            patch.setenv(name, value)
        return credentialed(bootstrap_addresses(str(cluster)), None, None, os.environ)


@pytest.mark.parametrize("env", [{}, OTHERS])
@pytest.mark.parametrize(
    "shown",
    [
        {"api_key_file": "/of/profile"},
        {"api_key": Secret(KEY)},
        {"ca": "/ca.pem"},
        {"ca": "/c", "api_key_file": "/f"},
        {"ca": "/c", "certificate": ClientCertificateFiles("/me.crt", "/me.key")},
        {"ca": "/c", "certificate": ClientCertificateFiles("/me.crt", "/me.key"), "api_key": Secret(KEY)},
    ],
)
def test_the_child_meets_the_cluster_as_its_parent(
    shown: dict[str, Any], env: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    meant = ClusterAddress(("a:1", "b:2"), **shown)
    found = reached(meant, env, monkeypatch)
    here = credentialed(meant, None, None, env)
    assert (found.servers, found.ca) == (meant.servers, meant.ca)
    assert (found.api_key, found.api_key_file) == (here.api_key, here.api_key_file)
    assert found.certificate == here.certificate


def test_what_the_environment_shows_stays_where_nothing_else_is_said() -> None:
    assert child_environment(ClusterAddress(("a:1",), ca="/x"), {"HEADRACE_API_KEY": KEY, "A": "b"}) == {
        "HEADRACE_API_KEY": KEY,
        "HEADRACE_CA": "/x",
        "A": "b",
    }


def test_paths_are_good_in_another_directory(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/ann")
    told = child_environment(ClusterAddress(("a:1",), ca="ca.pem", api_key_file="~/a.key"), {})
    assert told == {"HEADRACE_CA": str(tmp_path / "ca.pem"), "HEADRACE_API_KEY_FILE": "/home/ann/a.key"}
    told = child_environment(ClusterAddress(("a:1",)), {"HEADRACE_API_KEY_FILE": "b.key"})
    assert told == {"HEADRACE_API_KEY_FILE": str(tmp_path / "b.key")}


def test_what_was_given_is_not_changed() -> None:
    env = dict(OTHERS)
    child_environment(ClusterAddress(("a:1",), api_key_file="/f"), env)
    assert env == OTHERS


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Options that name a profile with a CA and a key, of a cluster that nobody looks for."""
    config = tmp_path / "config.toml"
    config.write_text('[p]\nbootstrap = "b:1"\nca = "/p.pem"\napi_key_file = "/p.key"\n')
    monkeypatch.setenv("HEADRACE_CONFIG", str(config))
    for name, value in OTHERS.items():
        monkeypatch.setenv(name, value)
    for module in (connect, connect_run, streams, job_commands):
        monkeypatch.setattr(module, "check_reachable", lambda cluster: None)
    return ["--profile", "p"]


def of_profile(cluster: Any) -> bool:
    assert isinstance(cluster, ClusterAddress)
    return (list(cluster), cluster.ca, cluster.api_key_file) == (["b:1"], "/p.pem", "/p.key")


def shows_profile(env: Mapping[str, str]) -> bool:
    """The key of the environment would count before the file, so it is not there."""
    return {name: env.get(name) for name in OTHERS} == {
        "HEADRACE_CA": "/p.pem",
        "HEADRACE_API_KEY_FILE": "/p.key",
        "HEADRACE_API_KEY": None,
    }


def test_workers_of_streams_get_what_the_profile_says(profile: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[tuple[list[str], Mapping[str, str]]] = []

    def popen(command: list[str], *, env: Mapping[str, str], **more: Any) -> Any:
        given.append((command, env))
        return SimpleNamespace(pid=1, wait=lambda: worker_process.Ending.FAILED, poll=lambda: 3)

    monkeypatch.setattr("headrace_streams.worker_process.subprocess.Popen", popen)
    assert runner.invoke(app, ["streams", "run", "words.py", *profile]).exit_code == 1
    [(command, env)] = given
    assert shows_profile(env)
    assert json.loads(command[-2]) == {"bootstrap_servers": "b:1"}, "and nothing of it is seen in ps"


def test_stores_are_asked_as_the_profile_says(profile: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    class Stub:
        def __init__(self, app: str, cluster: Any) -> None:
            asked.append(cluster)

        def __enter__(self) -> Any:
            return SimpleNamespace(names=list)

        def __exit__(self, *exc: object) -> None: ...

    monkeypatch.setattr(headrace_streams, "Stores", Stub)
    assert runner.invoke(app, ["streams", "state", "words", *profile]).exit_code == 0
    assert of_profile(*asked)


@pytest.fixture
def given_to_spark(monkeypatch: pytest.MonkeyPatch) -> list[submit.Program]:
    programs: list[submit.Program] = []
    monkeypatch.setattr(submit, "find_spark", lambda env: submit.SparkHere(Path("/spark"), Path("/java")))

    def run(program: submit.Program, spark: submit.SparkHere, env: Mapping[str, str]) -> int:
        programs.append(program)
        return 0

    monkeypatch.setattr(submit, "run", run)
    monkeypatch.setattr(jobs, "find_job", lambda name, all: SimpleNamespace(name="j"))
    return programs


def shown_to_spark(program: submit.Program) -> dict[str, str]:
    spark = submit.SparkHere(Path("/spark"), Path("/java"))
    assert not any("p.key" in word or "hrk_" in word for word in submit.command_of(program, spark))
    return submit.environment_of(program, spark, os.environ, "python")


def test_spark_gets_what_the_profile_says(
    profile: list[str], given_to_spark: list[submit.Program], tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        'from headrace_streams import App, string\napp = App("a")\napp.stream("in", value=string).to("out")\n'
    )
    for words in (["job", "run", "j"], ["streams", "spark", str(program), "--checkpoint", "/c"]):
        assert runner.invoke(app, [*words, *profile]).exit_code == 0
        env = shown_to_spark(given_to_spark.pop())
        assert shows_profile(env)
        assert env["HEADRACE_BOOTSTRAP"] == "b:1"


def test_a_job_that_names_another_cluster_shows_it_nothing_of_the_profile(
    profile: list[str], given_to_spark: list[submit.Program]
) -> None:
    assert runner.invoke(app, ["job", "run", "j", *profile, "--", "--bootstrap", "other:1"]).exit_code == 0
    env = shown_to_spark(*given_to_spark)
    assert {name: env[name] for name in OTHERS} == OTHERS, "what the environment says is for every client"


CONNECTOR = "name: n\nconnector.class: files\npath: /none\nformat: lines\ntopic: t\n"


def test_connectors_show_what_the_profile_says(
    profile: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    configs: list[Any] = []
    runtime = headrace_connect.runtime.main

    def answering(answer: Any, place: int) -> Callable[..., Any]:
        def take(*given: Any, **more: Any) -> Any:
            configs.append(given[place])
            return answer

        return take

    monkeypatch.setattr(runtime, "run", answering(None, 1))
    monkeypatch.setattr(runtime, "show", answering([], 2))
    monkeypatch.setattr(runtime, "cut_over", answering(([], SimpleNamespace(executed=False)), 2))
    file = tmp_path / "n.yaml"
    file.write_text(CONNECTOR)
    for words in (["run", str(file)], ["preview", str(file)], ["cutover", str(file), "g"]):
        done = runner.invoke(app, ["connect", *words, *profile])
        assert done.exit_code == 0, done.output
        assert of_profile(configs.pop().bootstrap_servers)


def test_verify_shows_what_the_profile_says(profile: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    class Admin:
        def __enter__(self) -> Any:
            return SimpleNamespace(list_brokers=lambda: [SimpleNamespace(fenced=False)])

        def __exit__(self, *exc: object) -> None: ...

    plans: list[Any] = []

    def run(plan: Any, *more: Any) -> Any:
        plans.append(plan)
        raise OSError(28, "it ends here")

    monkeypatch.setattr(Session, "admin", lambda session: Admin())
    monkeypatch.setattr(headrace_verify.running, "Run", run)
    runner.invoke(app, ["verify", "run", "--yes", *profile])
    assert of_profile(plans[0].servers)


def test_a_worker_really_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same by a process that says what it was started with."""
    program = "import json, os, sys; json.dump([sys.argv, dict(os.environ)], open('told', 'w')); sys.exit(3)"
    env = child_environment(ClusterAddress(("b:1",), api_key=Secret(KEY)), os.environ)
    parent = worker_process.Parent("words.py", {"bootstrap_servers": "b:1"}, 1, tmp_path, env)
    for slot in parent._slots:
        slot._command = [sys.executable, "-c", program, *slot._command[3:]]
    assert parent.run() is worker_process.Ending.FAILED
    words, found = json.loads((tmp_path / "told").read_text())
    assert found["HEADRACE_API_KEY"] == KEY
    assert KEY not in " ".join(words)

"""Spark on this machine: which Java, which jobs, what spark-submit is told, and how its end comes back."""

from __future__ import annotations

import json
import os
import stat
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from headrace.finding import ClusterAddress
from headrace_cli.app import app
from headrace_cli.commands import job as job_commands
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.interrupts import Interrupted
from headrace_cli.spark import jobs, submit
from headrace_cli.spark.java import find_java, version_in
from headrace_cli.spark.submit import Program, SparkHere

ENTRY = EntryPoint("topic_copy", "copies.job:main", jobs.GROUP)
runner = CliRunner()


def program(**changes: object) -> Program:
    given = {
        "file": Path("job.py"),
        "arguments": ["topic_copy", "--to", "b"],
        "name": "n",
        "conf": {},
        "cluster": ClusterAddress(("b:1",)),
    }
    return Program(**(given | changes))  # type: ignore[arg-type] # a mapping of fields


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def java(home: Path, version: str) -> Path:
    script(home / "bin" / "java", f"echo 'openjdk version \"{version}\" 2025-04-15' >&2")
    return home


@pytest.fixture
def spark(tmp_path: Path) -> SparkHere:
    """A Spark that writes down what it is told, and ends as the file ``code`` says."""
    home = tmp_path / "spark"
    record = "import json, os, sys; json.dump([sys.argv[1:], dict(os.environ)], open('told', 'w'))"
    script(
        home / "bin" / "spark-submit",
        f'cd {tmp_path}; {sys.executable} -c "{record}" "$@"\n'
        "echo 'WARNING: Using incubator modules: jdk.incubator.vector' >&2; echo 'what matters' >&2\n"
        "echo result; exit $(cat code 2>/dev/null || echo 0)",
    )
    (home / "jars").mkdir()
    return SparkHere(home, java(tmp_path / "java", "17.0.1"))


def told(spark: SparkHere) -> tuple[list[str], dict[str, str]]:
    words, env = json.loads((spark.home.parent / "told").read_text())
    return words, env


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime', 17),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "25" 2025-09-16 LTS', 25),
        ('Picked up JAVA_TOOL_OPTIONS: -Xmx1g\nopenjdk version "21.0.2"', 21),
        ("command not found", None),
    ],
)
def test_java_says_its_version(said: str, version: int | None) -> None:
    assert version_in(said) == version


def test_the_java_that_is_named_is_taken_before_the_one_on_the_path(tmp_path: Path) -> None:
    named, on_path = java(tmp_path / "named", "21.0.1"), java(tmp_path / "path", "17.0.1")
    env = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    assert find_java(env, tmp_path / "none") == named
    assert find_java({"PATH": str(on_path / "bin")}, tmp_path / "none") == on_path


def test_a_java_that_is_too_old_or_broken_is_passed_over(tmp_path: Path) -> None:
    old, broken = java(tmp_path / "old", "1.8.0_402"), tmp_path / "broken"
    script(broken / "bin" / "java", "exit 1")
    env = {"JAVA_HOME": str(broken), "PATH": str(old / "bin")}
    assert find_java(env, tmp_path / "none") is None
    java(tmp_path / "all" / "a-25", "25")
    seventeen = java(tmp_path / "all" / "b-17", "17.0.9")
    java(tmp_path / "all" / "c-11", "11.0.9")
    assert find_java(env, tmp_path / "all") == seventeen


def test_a_link_on_the_path_leads_home(tmp_path: Path) -> None:
    home = java(tmp_path / "jvm" / "java-17", "17.0.1")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java({"PATH": str(tmp_path / "bin")}, tmp_path / "none") == home


def test_a_job_is_described_without_being_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "copies"
    package.mkdir()
    (package / "__init__.py").write_text('"""Copies a topic.\n\nAll of it."""\nraise RuntimeError("run")\n')
    monkeypatch.syspath_prepend(tmp_path)
    found = jobs.list_jobs([ENTRY, EntryPoint("absent", "nowhere.job:main", jobs.GROUP)])
    assert [(job.name, job.summary, job.package) for job in found.values()] == [
        ("absent", "", ""),
        ("topic_copy", "Copies a topic.", ""),
    ]


def test_a_job_is_found_by_either_spelling_and_what_there_is_is_told() -> None:
    found = jobs.list_jobs([ENTRY])
    assert jobs.find_job("topic-copy", found) is found["topic_copy"]
    with pytest.raises(CommandFailed, match="no job 'copy'; there are topic_copy") as failed:
        jobs.find_job("copy", found)
    assert failed.value.exit_code is ExitCode.NOT_FOUND
    with pytest.raises(CommandFailed, match="none is installed"):
        jobs.find_job("copy", {})


def test_settings_of_the_user_come_instead_of_ours(spark: SparkHere) -> None:
    words = submit.command_of(program(conf={"spark.ui.enabled": "true", "spark.x": "a=b"}), spark)
    assert words[1:5] == ["--master", "local[*]", "--name", "n"]
    settings = {words[n + 1] for n, word in enumerate(words) if word == "--conf"}
    assert settings == {"spark.ui.enabled=true", "spark.ui.showConsoleProgress=false", "spark.x=a=b"}
    assert words[-4:] == ["job.py", "topic_copy", "--to", "b"]
    assert submit.command_of(program(master="spark://a:7077"), spark)[5:] == ["job.py", "topic_copy", "--to", "b"]


def test_this_python_is_for_this_machine_only(spark: SparkHere) -> None:
    here = submit.environment_of(program(), spark, {}, "/venv/python")
    assert here["PYSPARK_PYTHON"] == here["PYSPARK_DRIVER_PYTHON"] == "/venv/python"
    assert here["JAVA_HOME"] == str(spark.java)
    assert here["HEADRACE_BOOTSTRAP"] == "b:1"
    assert "PYTHONPATH" not in here
    far = submit.environment_of(program(master="k8s://a"), spark, {"PYSPARK_PYTHON": "python3.11"}, "/venv/python")
    assert far["PYSPARK_PYTHON"] == "python3.11"
    assert "SPARK_LOCAL_IP" not in far


def test_sparks_log_is_as_configured_when_it_is_wanted(spark: SparkHere) -> None:
    quiet = submit.environment_of(program(), spark, {"SPARK_SUBMIT_OPTS": "-Da=b"}, "python")
    assert quiet["SPARK_SUBMIT_OPTS"] == f"-Da=b -Dlog4j2.configurationFile={submit.QUIET.as_uri()}"
    assert submit.QUIET.is_file()
    assert "SPARK_SUBMIT_OPTS" not in submit.environment_of(program(verbose=True), spark, {}, "python")


def test_what_a_program_says_and_how_it_ends_comes_through(spark: SparkHere, capfd: pytest.CaptureFixture[str]) -> None:
    (spark.home.parent / "code").write_text("3")
    assert submit.run(program(), spark, os.environ) == 3
    said = capfd.readouterr()
    assert (said.out, said.err) == ("result\n", "what matters\n")
    assert told(spark)[0][-4:] == ["job.py", "topic_copy", "--to", "b"]


def test_what_java_says_is_left_in_when_all_is_wanted(spark: SparkHere, capfd: pytest.CaptureFixture[str]) -> None:
    assert submit.run(program(verbose=True), spark, os.environ) == 0
    assert capfd.readouterr().err.startswith("WARNING: Using incubator modules")


def test_a_program_that_a_signal_ended_has_the_code_that_shells_give(spark: SparkHere) -> None:
    script(spark.home / "bin" / "spark-submit", "kill -KILL $$")
    assert submit.run(program(), spark, os.environ) == 128 + 9


def test_an_interrupted_program_ends_before_the_command_does(spark: SparkHere, tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    script(
        spark.home / "bin" / "spark-submit",
        f"trap 'echo interrupted > {ended}; exit 130' INT; kill -INT $PPID; while :; do sleep 0.05; done",
    )
    with pytest.raises(Interrupted):
        submit.run(program(), spark, os.environ)
    assert ended.read_text() == "interrupted\n"


def test_the_spark_beside_this_command_is_taken_before_the_one_that_is_named(
    spark: SparkHere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = {"SPARK_HOME": str(spark.home)}
    beside = tmp_path / "pyspark"
    script(beside / "bin" / "spark-submit", "")
    (beside / "jars").mkdir()
    monkeypatch.setattr(submit, "find_spec", lambda _: SimpleNamespace(origin=str(beside / "__init__.py")))
    assert submit.spark_home(named) == beside
    monkeypatch.setattr(submit, "find_spec", lambda _: None)
    assert submit.spark_home(named) == spark.home
    assert submit.spark_home({}) is None


@pytest.mark.parametrize(
    ("missing", "said", "next_step"),
    [("spark_home", "Spark is not installed", "make setup-spark"), ("find_java", "Java 17", "openjdk-17-jre-headless")],
)
def test_without_spark_or_java_the_command_says_how_to_get_it(
    missing: str, said: str, next_step: str, spark: SparkHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "entry_points", lambda group: [ENTRY])
    monkeypatch.setattr(submit, "spark_home", lambda _: spark.home)
    monkeypatch.setattr(submit, missing, lambda _: None)
    result = runner.invoke(app, ["job", "run", "topic_copy"])
    assert result.exit_code == ExitCode.FAILED
    assert said in result.stderr
    assert next_step in result.stderr


@pytest.fixture
def command(spark: SparkHere, monkeypatch: pytest.MonkeyPatch) -> SparkHere:
    """``headrace job`` with one job and that Spark; the list of addresses that were tried is ``tried``."""
    monkeypatch.setattr(jobs, "entry_points", lambda group: [ENTRY])
    monkeypatch.setattr(submit, "find_spark", lambda _: spark)
    return spark


def test_a_job_runs_with_its_options_and_its_exit_code_is_the_commands(
    command: SparkHere, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached: list[str] = []
    monkeypatch.setattr(job_commands, "check_reachable", reached.append)
    (command.home.parent / "code").write_text("7")
    given = ["job", "run", "topic-copy", "-b", "b:9", "--master", "local[2]", "-c", "spark.a=1", "--", "--from", "x"]
    assert runner.invoke(app, given).exit_code == 7
    words, env = told(command)
    assert words[words.index("--master") + 1] == "local[2]"
    assert "spark.a=1" in words
    assert words[-4:] == [str(submit.ENTRY), "topic_copy", "--from", "x"]
    assert env["HEADRACE_BOOTSTRAP"] == "b:9"
    assert [list(cluster) for cluster in reached] == [["b:9"]]


def test_nobody_there_is_told_at_once_unless_the_job_names_its_own(command: SparkHere) -> None:
    nobody = ["job", "run", "topic_copy", "-b", "127.0.0.1:1"]
    assert runner.invoke(app, nobody).exit_code == ExitCode.UNREACHABLE
    assert runner.invoke(app, [*nobody, "--", "--source-bootstrap", "b:9"]).exit_code == ExitCode.OK


def test_a_jobs_help_needs_no_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "helpful.py").write_text("def main(argv):\n    print('options of', *argv)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(jobs, "entry_points", lambda group: [EntryPoint("helpful", "helpful:main", jobs.GROUP)])
    monkeypatch.setattr(sys, "argv", sys.argv)
    result = runner.invoke(app, ["job", "run", "helpful", "--", "--help"])
    assert (result.exit_code, result.stdout) == (0, "options of --help\n")


def test_a_job_that_cannot_be_loaded_says_what_it_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "entry_points", lambda group: [EntryPoint("lacking", "not_there.job:main", jobs.GROUP)])
    result = runner.invoke(app, ["job", "run", "lacking", "--", "-h"])
    assert result.exit_code == ExitCode.FAILED
    assert "No module named 'not_there'" in result.stderr


def test_settings_must_be_pairs(command: SparkHere) -> None:
    result = runner.invoke(app, ["job", "run", "topic_copy", "-c", "spark.a"])
    assert result.exit_code == ExitCode.USAGE
    assert "KEY=VALUE" in result.stderr

"""``headrace streams spark``: what is refused before Spark is looked for, and what Spark is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_cli.commands import streams
from headrace_cli.spark import submit

FINE = """
from headrace_streams import App, col, json
app = App("fine")
app.stream("in", value=json("n bigint")).filter(col("n") > 1).to("out")
"""


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[submit.Program]:
    """What was given to Spark."""
    programs: list[submit.Program] = []
    monkeypatch.setattr(submit, "find_spark", lambda env: submit.SparkHere(Path("/spark"), Path("/java")))
    monkeypatch.setattr(submit, "run", lambda program, spark, env: programs.append(program) or 0)
    monkeypatch.setattr(streams, "check_reachable", lambda cluster: None)
    return programs


def run(path: Path, text: str, *options: str) -> str:
    program = path / "program.py"
    program.write_text(text)
    words = ["streams", "spark", str(program), "--checkpoint", "/c", "--bootstrap", "b:1", *options]
    ended = CliRunner().invoke(app, words)
    return f"{ended.exit_code} {ended.output}"


def test_a_program_and_its_checkpoint_are_given_to_spark(told: list[submit.Program], tmp_path: Path) -> None:
    assert run(tmp_path, FINE, "--available-now", "-c", "spark.sql.shuffle.partitions=2").startswith("0 ")
    [given] = told
    assert given.file.is_file()
    assert given.arguments == [str(tmp_path / "program.py"), "/c", "available-now"]
    assert (given.name, list(given.cluster)) == ("fine", ["b:1"])
    assert given.conf == {"spark.sql.session.timeZone": "UTC", "spark.sql.shuffle.partitions": "2"}
    run(tmp_path, FINE)
    assert told[1].arguments[-1] == "always"
    assert told[1].conf["spark.sql.shuffle.partitions"] == "4", "not the 200 of many machines"
    run(tmp_path, FINE, "--master", "yarn")
    assert "spark.sql.shuffle.partitions" not in told[2].conf


def test_what_spark_would_do_otherwise_is_told_before_it_starts(told: list[submit.Program], tmp_path: Path) -> None:
    output = run(tmp_path, FINE.replace('n") > 1', 'n") // 2 > 1'))
    assert not output.startswith("0 ")
    assert "cannot run on Spark with the same result" in output
    assert "program.py:4" in output
    assert not told

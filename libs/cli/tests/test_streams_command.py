"""What ``headrace streams run`` tells workers: options over the environment over defaults."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace_cli.app import app
from headrace_streams import App, string, worker_process
from headrace_streams.config import StreamsConfig
from headrace_streams.plan.describe import as_dot
from headrace_streams.worker_process import Ending


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The settings that workers would get."""
    found: dict[str, Any] = {}

    class Stub:
        def __init__(self, program: str, settings: Mapping[str, Any], workers: int, *, env: Mapping[str, str]) -> None:
            found.update(settings)

        def run(self) -> Ending:
            return Ending.DONE

    monkeypatch.setattr(worker_process, "Parent", Stub)
    return found


def config(told: dict[str, Any], *options: str, **environment: str) -> StreamsConfig:
    ended = CliRunner().invoke(app, ["streams", "run", "words.py", "--bootstrap", "b:1", *options], env=environment)
    assert ended.exit_code == 0, ended.output
    return StreamsConfig.of(told)


def test_what_is_not_said_is_the_default(told: dict[str, Any]) -> None:
    assert config(told) == StreamsConfig(bootstrap_servers="b:1")


def test_options_count_before_the_environment(told: dict[str, Any]) -> None:
    environment = {"HEADRACE_STREAMS_STANDBYS": "1", "HEADRACE_STREAMS_COMMIT_INTERVAL_MS": "20"}
    assert config(told, **environment) == StreamsConfig(bootstrap_servers="b:1", standbys=1, commit_interval_ms=20)
    found = config(told, "--standbys", "0", "--state-dir", "/s", "--commit-interval-ms", "7", **environment)
    assert found == StreamsConfig(bootstrap_servers="b:1", standbys=0, state_dir=Path("/s"), commit_interval_ms=7)


def test_a_variable_that_cannot_be_is_refused_before_anything_starts(told: dict[str, Any]) -> None:
    variable = "HEADRACE_STREAMS_COMMIT_ROWS"
    ended = CliRunner().invoke(app, ["streams", "run", "words.py", "--bootstrap", "b:1"], env={variable: "many"})
    assert ended.exit_code != 0
    assert f"{variable}: takes a whole number" in ended.output
    assert not told


@pytest.mark.parametrize(("ending", "code"), [(Ending.INTERRUPTED, 130), (Ending.LOST, 1), (Ending.FENCED, 1)])
def test_how_workers_have_ended_is_the_exit_code(ending: Ending, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process.Parent, "run", lambda parent: ending)
    assert CliRunner().invoke(app, ["streams", "run", "words.py", "--bootstrap", "b:1"]).exit_code == code


PROGRAM = """
from headrace.streams import App, agg, json, tumbling
app = App("bil")
orders = app.stream("orders", value=json("user string, amount double"))
windows = orders.group_by("user", name="by-user").window(tumbling("1m"), late="orders-late")
windows.agg(n=agg.count(), name="counts", emit="final").to("counts-out")
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "bil.py"
    path.write_text(PROGRAM)
    return str(path)


def test_a_topology_is_a_flow_chart_if_nothing_is_said(program: str) -> None:
    plain = CliRunner().invoke(app, ["streams", "describe", program])
    mermaid = CliRunner().invoke(app, ["streams", "describe", program, "--as", "mermaid"])
    assert plain.exit_code == 0, plain.output
    assert plain.output == mermaid.output
    assert plain.output.startswith('flowchart TD\n  subgraph s0["orders"]\n')
    assert '[["agg counts"]]' in plain.output
    assert '[("bil.by-user.repartition")]' in plain.output
    assert " -- late --> " in plain.output


def test_a_topology_as_dot(program: str) -> None:
    drawn = CliRunner().invoke(app, ["streams", "describe", program, "--as", "dot"])
    assert drawn.exit_code == 0, drawn.output
    lines = drawn.output.splitlines()
    assert (lines[0], lines[-1]) == ('digraph "bil" {', "}")
    assert '    label="by-user"' in lines
    assert any(line.endswith('[label="agg counts", peripheries=2]') for line in lines)
    assert any(line.endswith('[label="bil.by-user.repartition", shape=cylinder]') for line in lines)
    assert any(line.endswith(' [label="late"]') for line in lines)
    assert drawn.output.count("->") == CliRunner().invoke(app, ["streams", "describe", program]).output.count("-->")


def test_names_of_topics_are_quoted_for_dot() -> None:
    made = App("a")
    made.stream(re.compile("a\\\\d"), value=string, name="all").to("out")
    assert '[label="a\\\\\\\\d", shape=cylinder]' in as_dot("a", made.graph)


def test_svg_is_what_graphviz_draws(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    without = CliRunner().invoke(app, ["streams", "describe", program, "--as", "svg"])
    assert without.exit_code == 2
    assert "its `dot` is not on the PATH" in without.output
    dot = tmp_path / "dot"
    dot.write_text(f"#!{sys.executable}\nimport sys\nprint('<svg>', sys.argv[1:], sys.stdin.read()[:13])\n")
    dot.chmod(0o755)
    drawn = CliRunner().invoke(app, ["streams", "describe", program, "--as", "svg"])
    assert (drawn.exit_code, drawn.output) == (0, "<svg> ['-Tsvg'] digraph \"bil\"\n")
    dot.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('syntax error')\n")
    failed = CliRunner().invoke(app, ["streams", "describe", program, "--as", "svg"])
    assert failed.exit_code == 1
    assert "dot failed: syntax error" in failed.output


def test_data_and_a_picture_are_not_printed_at_once(program: str) -> None:
    refused = CliRunner().invoke(app, ["streams", "describe", program, "--as", "dot", "-o", "json"])
    assert refused.exit_code == 2
    assert "give -o or --as" in refused.output

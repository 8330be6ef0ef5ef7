"""Options are judged before any JVM starts, and what is wrong is said in a sentence."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from headrace_common.core.errors import DataLost, InvalidConfig
from headrace_jobs.arguments import (
    BOOTSTRAP,
    EXIT_FAILED,
    EXIT_WRONG,
    add_sink,
    add_source,
    exit_status,
    job_parser,
    names,
    parse_values,
    sink_options,
    source_options,
    trigger_of,
)
from headrace_spark.core.option_table import Mode

JOBS = ("topic_to_lake", "windowed_aggregate", "retention_audit", "topic_copy")
LAKE = ["--bootstrap", "b:1", "--topic", "t", "--checkpoint", "c", "--output", "o", "--schema", "a int"]
COPY = ["--bootstrap", "b:1", "--topic", "t"]
WINDOWS = [*COPY, "--schema", "a int", "--checkpoint", "c", "--window", "1 hour", "--output-topic", "u"]


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_BOOTSTRAP", raising=False)


def test_a_trigger_is_now_or_an_interval() -> None:
    assert trigger_of("available-now").interval is None
    assert trigger_of("10 seconds").interval == "10 seconds"
    for wrong in ("", "10", "0 seconds", "-1 second", "10 parsecs", "batch"):
        with pytest.raises(InvalidConfig, match="--trigger takes"):
            trigger_of(wrong)


def test_lists_and_named_values() -> None:
    assert names(" a, b ,,c ") == ("a", "b", "c")
    assert names(None) == ()
    assert parse_values("--sink-option", ["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    with pytest.raises(InvalidConfig, match="takes NAME=VALUE"):
        parse_values("--sink-option", ["a"])


def test_without_an_address_a_job_finds_the_cluster_as_every_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    parser = job_parser("x", "y")
    add_source(parser)
    args = parser.parse_args(["--topic", "t"])
    monkeypatch.setenv("HEADRACE_BOOTSTRAP", "env:1,env:2")
    assert source_options(args, Mode.READ_BATCH)["kafka.bootstrap.servers"] == "env:1,env:2"


def test_what_the_connector_gets() -> None:
    parser = job_parser("x", "y")
    add_source(parser)
    add_sink(parser, topic_required=True)
    args = parser.parse_args(
        [
            *("--bootstrap", "b:1", "--topic", "t,u", "--output-topic", "v", "--max-offsets-per-trigger", "7"),
            *("--source-option", "maxTasks=3", "--source-option", "STARTINGOFFSETS=latest"),
            *("--sink-option", "kafka.compression.type=zstd"),
        ]
    )
    assert source_options(args, Mode.READ_STREAM, headers=True) == {
        BOOTSTRAP: "b:1",
        "subscribe": "t,u",
        "kafka.isolation.level": "read_committed",
        "includeHeaders": "true",
        "startingOffsets": "latest",
        "failOnDataLoss": "true",
        "maxOffsetsPerTrigger": "7",
        "maxTasks": "3",
    }
    assert sink_options(args, Mode.WRITE_STREAM) == {BOOTSTRAP: "b:1", "topic": "v", "kafka.compression.type": "zstd"}


@pytest.mark.parametrize("job", JOBS)
def test_help_needs_no_spark(job: str) -> None:
    code = (
        "import sys\n"
        f"from headrace_jobs.{job}.job import parser\n"
        "parser().format_help()\n"
        "assert 'pyspark' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize(
    ("job", "given", "said"),
    [
        ("topic_to_lake", [*LAKE, "--topic-pattern", "x.*"], "one of --topic and --topic-pattern"),
        ("topic_to_lake", [*LAKE, "--infer"], "one of --schema, --schema-file and --infer"),
        ("topic_to_lake", [*LAKE, "--trigger", "soon"], "--trigger takes"),
        ("topic_to_lake", [*LAKE, "--source-option", "maxTask=1"], "maxTasks"),
        ("topic_to_lake", [*LAKE, "--source-option", "kafka.ssl.key.password=hush"], "looks like a secret"),
        ("topic_to_lake", ["--list-files", "/nowhere/at/all"], "nothing was committed there yet"),
        ("windowed_aggregate", [*WINDOWS, "--watermark", "1; DROP"], "--watermark takes a number and a unit"),
        ("windowed_aggregate", [*WINDOWS, "--output-topic", "t"], "would be aggregated into itself"),
        ("retention_audit", [*COPY, "--output", "o", "--fail-on", "gap"], "--fail-on takes"),
        ("retention_audit", [*COPY, "--output", "o", "--skew-max", "2"], "--skew-max"),
        ("topic_copy", [*COPY, "--output-topic", "u"], "give --checkpoint"),
        ("topic_copy", [*COPY, "--output-topic", "u", "--checkpoint", "c", "--trigger", "batch"], "give --checkpoint"),
        ("topic_copy", [*COPY, "--output-topic", "t", "--checkpoint", "c"], "onto itself"),
        ("topic_copy", [*COPY, "--same-topics", "--checkpoint", "c"], "onto themselves"),
        ("topic_copy", [*COPY, "--checkpoint", "c"], "say where records go"),
        ("topic_copy", [*COPY, "--output-topic", "u", "--checkpoint", "c", "--keep", "keys"], "--keep takes"),
    ],
)
def test_wrong_options_are_told(job: str, given: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = import_module(f"headrace_jobs.{job}.job").main(given)
    told = capsys.readouterr()
    assert status in (EXIT_WRONG, EXIT_FAILED)
    assert said in told.err
    assert "hush" not in told.err
    assert told.out == ""


def test_a_failure_is_not_a_wrong_option(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise DataLost("gone")

    assert exit_status(fails) == EXIT_FAILED
    assert capsys.readouterr().err == "error: gone\n"

"""``headrace group`` on a real cluster, from the first look to the last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import headrace
from headrace_cli.app import app
from headrace_cli.local import LocalCluster

pytestmark = pytest.mark.integration

Run = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with LocalCluster(tmp_path_factory.mktemp("group") / "data", brokers=1, restart=False) as started:
        with (
            headrace.Producer(started.bootstrap_servers) as producer,
            headrace.AdminClient(started.bootstrap_servers) as admin,
        ):
            admin.create_topic("flights", 2)
            for n in range(50):
                producer.send("flights", b"%d" % n, partition=0)
            producer.flush(10)
        yield started


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    def invoke(*argv: str, code: int = 0, stdin: str | None = None) -> Any:
        bootstrap = ",".join(cluster.bootstrap_servers)
        result = CliRunner().invoke(app, ["group", *argv, "--bootstrap", bootstrap], input=stdin)
        assert result.exit_code == code, result.output
        return result

    return invoke


def test_looking_makes_nothing_and_says_how_groups_come_to_be(run: Run, cluster: LocalCluster) -> None:
    assert "there are no groups" in run("list").stderr
    assert "headrace group list" in run("describe", "billing", code=3).stderr
    run("lag", "billing", code=3)
    run("delete", "billing", "--yes", code=3)
    run("reset", "billing", "-t", "flights", "--to-latest")
    with headrace.AdminClient(cluster.bootstrap_servers) as admin:
        assert [t.name for t in admin.list_topics(include_internal=True)] == ["flights"]


def test_a_group_from_its_first_offset_to_its_end(run: Run, tmp_path: Path, cluster: LocalCluster) -> None:
    assert "carries it out" in run("reset", "billing", "-t", "flights", "--to-earliest").stderr
    run("lag", "billing", code=3)
    run("reset", "billing", "-t", "flights", "--to-earliest", "--execute")
    rows = json.loads(run("lag", "billing", "-o", "json").stdout)["partitions"]
    assert [(r["partition"], r["committed_offset"], r["end_offset"], r["lag"]) for r in rows] == [
        (0, 0, 50, 50),
        (1, 0, 0, 0),
    ]
    assert rows[0]["lag_seconds"] > 0 == rows[1]["lag_seconds"]
    run("reset", "billing", "-t", "flights:0", "--shift-by", "20", "--execute")
    saved = run("export", "billing").stdout
    assert saved == "flights,0,20\nflights,1,0\n"
    run("reset", "billing", "--all-topics", "--to-latest", "--execute")
    assert "0 records behind in all" in run("lag", "billing").stderr
    (tmp_path / "saved.csv").write_text(saved)
    run("reset", "billing", "--from-file", str(tmp_path / "saved.csv"), "--execute")
    assert "30 records behind in all" in run("lag", "billing").stderr
    run("reset", "billing", "--all-topics", "--by-duration", "1d", "--execute")
    assert run("export", "billing").stdout == "flights,0,0\nflights,1,0\n"
    assert "billing" in run("list", "--state", "empty").stdout
    line = f"headrace group -b {cluster.bootstrap_servers[0]} describe bil"
    words = {"_HEADRACE_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "5"}
    asked = [sys.executable, "-c", "from headrace_cli.app import app; app(prog_name='headrace')"]
    completed = subprocess.run(asked, env={**os.environ, **words}, capture_output=True, text=True, check=False)
    assert completed.stdout.split() == ["billing"], "the shell completes it"
    assert "it has no members" in run("describe", "billing").stderr
    run("delete-offsets", "billing", "-t", "flights:1", "--yes")
    assert run("export", "billing").stdout == "flights,0,0\n"
    run("delete-offsets", "billing", "-t", "flights:1", "-t", "nothing", "--yes", code=3)
    run("delete", "billing", "--yes")
    run("describe", "billing", code=3)


def test_what_cannot_be_reset_says_why(run: Run) -> None:
    assert "headrace topic list" in run("reset", "g", "-t", "nope", "--to-latest", code=3).stderr
    assert "has no partition 9" in run("reset", "g", "-t", "flights:9", "--to-latest", code=3).stderr
    assert "nothing is committed" in run("reset", "g", "-t", "flights", "--shift-by", "1", code=2).stderr
    assert "name the topics" in run("reset", "g", "--all-topics", "--to-latest", code=2).stderr
    no_zone = run("reset", "g", "-t", "flights", "--to-datetime", "2026-01-01T00:00:00", code=2)
    assert "zone" in no_zone.stderr


@pytest.mark.parametrize("protocol", ["consumer", "classic"])
def test_a_consumer_is_seen_while_it_reads_and_leaves_its_position(
    run: Run, cluster: LocalCluster, protocol: str
) -> None:
    group = f"reading-{protocol}"
    run("reset", group, "-t", "flights", "--to-earliest", "--execute")
    with headrace.Consumer(
        "flights",
        bootstrap_servers=cluster.bootstrap_servers,
        group_id=group,
        group_protocol=protocol,
        client_id="desk",
        enable_auto_commit=False,
    ) as consumer:
        left = 50
        while left > 0:
            got = consumer.poll(timeout_ms=20_000, max_records=20)
            assert got, "it reads on from where the group was put"
            left -= len(got)
        consumer.commit()
        found = json.loads(run("describe", group, "-o", "json").stdout)
        (member,) = found["members"]
        held = [{"topic": "flights", "partitions": [0, 1]}]
        assert (found["protocol"], member["client_id"], member["assigned"]) == (protocol, "desk", held)
        assert "desk" in run("lag", group).stdout
        assert "1 member: stop them first" in run("reset", group, "--all-topics", "--to-earliest").stderr
        refused = run("reset", group, "--all-topics", "--to-earliest", "--execute", code=1).stderr
        assert "desk at 127.0.0.1:" in refused
    assert "0 records behind in all" in run("lag", group).stderr
    run("reset", group, "--all-topics", "--to-earliest", "--execute")
    run("delete", group, "--yes")


def test_consume_as_a_member_goes_on_where_the_group_was(cluster: LocalCluster) -> None:
    bootstrap = ",".join(cluster.bootstrap_servers)

    def consume(*argv: str, code: int = 0) -> Any:
        result = CliRunner().invoke(app, ["consume", "flights", *argv, "-g", "printing", "--bootstrap", bootstrap])
        assert result.exit_code == code, result.output
        return result

    first = consume("-n", "20", "--from", "beginning").stdout.split()
    rest = consume("--exit-at-end").stdout.split()
    assert (len(first), [*first, *rest]) == (20, [str(n) for n in range(50)])
    assert consume("--exit-at-end").stdout == "", "all of it is committed"
    assert "headrace group reset" in consume("--from", "7", code=2).stderr
    assert "leave out" in consume("-p", "0", code=2).stderr


def test_a_member_that_is_terminated_leaves_at_once(cluster: LocalCluster) -> None:
    argv = ["consume", "flights", "-g", "ending", "--from", "beginning", "--bootstrap", cluster.bootstrap_servers[0]]
    with subprocess.Popen([sys.executable, "-m", "headrace_cli", *argv], stdout=subprocess.PIPE) as member:
        try:
            assert member.stdout is not None
            assert member.stdout.readline() == b"0\n", "it reads, so it is a member"
            member.terminate()
            assert member.wait(30) == 128 + signal.SIGTERM
        finally:
            member.kill()
    with headrace.AdminClient(cluster.bootstrap_servers) as admin:
        assert admin.describe_group("ending").members == (), "nobody waits for the grace of a broken stream"

"""A whole cluster of real processes, through the command and through the SDK, kills included."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.integration.local.conftest import MakeCluster, headrace, processes_on

import headrace as sdk
from headrace_cli.demo.flights import ROWS

pytestmark = pytest.mark.integration


def run(*argv: str, cwd: Path, stdin: str | None = None, code: int = 0, timeout: float = 60) -> str:
    """Run a command that is to end with ``code``; what it printed on stdout."""
    done = headrace(*argv, cwd=cwd, stdin=stdin, timeout=timeout)
    assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


def test_a_newcomer_goes_from_nothing_to_records_with_the_command_alone(tmp_path: Path) -> None:
    told = json.loads(run("up", "--brokers", "2", "--detach", "-o", "json", cwd=tmp_path))
    try:
        assert len(told["bootstrap_servers"]) == 2
        metadata = json.loads(run("debug", "metadata", "-o", "json", cwd=tmp_path))
        assert told["cluster_id"] == metadata["cluster_id"], "what clients compare the answers with"
        assert run("topic", "create", "orders", "-p", "3", "-c", "retention.ms=86400000", cwd=tmp_path) == ""
        assert "orders exists" in run("topic", "create", "orders", cwd=tmp_path, code=1)
        lines = "".join(f"k{n % 5}:value {n}\n" for n in range(1000))
        run("produce", "orders", "--key-separator", ":", cwd=tmp_path, stdin=lines)
        values = run("consume", "orders", "--exit-at-end", cwd=tmp_path).splitlines()
        assert sorted(values) == sorted(f"value {n}" for n in range(1000))
        printed = run("consume", "orders", "-e", "-f", "json", cwd=tmp_path)
        run("topic", "create", "copy", "-p", "3", cwd=tmp_path)
        run("produce", "copy", "--json", cwd=tmp_path, stdin=printed)
        copied = run("consume", "copy", "-e", "-f", "json", cwd=tmp_path).replace('"copy"', '"orders"')
        assert sorted(copied.splitlines()) == sorted(printed.splitlines())
        assert run("consume", "orders", "--from", "-2", "-e", "-p", "0", cwd=tmp_path).count("\n") == 2
        assert len(run("consume", "orders", "--from", "1h", "-n", "7", cwd=tmp_path).splitlines()) == 7
        described = json.loads(run("topic", "describe", "orders", "-o", "json", cwd=tmp_path))
        assert described["records"] == 1000
        assert described["configs"] == {"retention.ms": "86400000"}
        assert {p["leader"] for p in described["partitions"]} == {1, 2}
        status = json.loads(run("status", "-o", "json", cwd=tmp_path))
        assert status["healthy"], status["verdict"]
        assert status["verdict"] == "healthy: 2 brokers, 2 topics, 6 partitions"
        assert "does not exist" in run("topic", "describe", "nothing", cwd=tmp_path, code=3)
        assert "has partitions 0 to 2" in run("consume", "orders", "-p", "9", cwd=tmp_path, code=3)
        run("topic", "trim", "orders", "--all", "--yes", cwd=tmp_path)
        assert run("consume", "orders", "--exit-at-end", cwd=tmp_path) == ""
        measured = json.loads(run("bench", "produce", "-n", "20000", "--flush-info", "-o", "json", cwd=tmp_path))
        assert measured["records"] == 20_000
        assert measured["flush"] == "group"
        assert json.loads(run("topic", "list", "-o", "json", cwd=tmp_path))["topics"][0]["name"] == "copy"
    finally:
        run("down", cwd=tmp_path)
    assert processes_on(tmp_path) == []
    assert "headrace up" in run("topic", "list", cwd=tmp_path, code=4)


def test_brokers_come_and_go_by_command(tmp_path: Path) -> None:
    run("up", "--brokers", "4", "--controllers", "3", "--racks", "a,b,c,a", "--detach", cwd=tmp_path)
    try:
        run("topic", "create", "t", "-p", "6", cwd=tmp_path)
        run("produce", "t", cwd=tmp_path, stdin="".join(f"{n}\n" for n in range(5000)))
        described = json.loads(run("topic", "describe", "t", "-o", "json", cwd=tmp_path))["partitions"]
        assert all(len(p["replicas"]) == 3 == len(p["isr"]) for p in described)
        assert all({2, 3} < set(p["replicas"]) for p in described), "a replica in each rack"
        run("broker", "drain", "2", cwd=tmp_path)
        described = json.loads(run("topic", "describe", "t", "-o", "json", cwd=tmp_path))["partitions"]
        assert 2 not in {p["leader"] for p in described}
        run("broker", "undrain", "2", cwd=tmp_path)
        moved = json.loads(
            run("broker", "decommission", "4", "--throttle", "50000000", "--wait", "-o", "json", cwd=tmp_path)
        )
        assert moved["replicas_left"] == 0
        assert "stop it first" in run("broker", "unregister", "4", "--yes", cwd=tmp_path, code=1)
        run("broker", "undrain", "4", cwd=tmp_path)
        plan = run("cluster", "rebalance", "--plan", "-o", "json", cwd=tmp_path)
        (tmp_path / "plan.json").write_text(plan)
        run("partition", "move", "--from-file", "plan.json", "--wait", cwd=tmp_path)
        run("partition", "elect", cwd=tmp_path)
        assert json.loads(run("cluster", "rebalance", "-o", "json", cwd=tmp_path))["moves"] == []
        assert "does not exist" in run("partition", "move", "t-9=1", cwd=tmp_path, code=3)
        assert "not registered" in run("partition", "move", "t-0=9", cwd=tmp_path, code=2)
        assert run("cluster", "health", cwd=tmp_path).startswith("healthy: 4 brokers")
        assert run("consume", "t", "-e", cwd=tmp_path).count("\n") == 5000
    finally:
        run("down", cwd=tmp_path)
    run("status", cwd=tmp_path, code=7)


def test_nothing_acknowledged_is_lost_whichever_process_is_killed(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=3, controllers=2, restart_delay_ms=0, settings={"num.partitions": "4"})
    cluster.start()
    bootstrap = cluster.bootstrap_servers
    with sdk.AdminClient(bootstrap) as admin:
        assert len(admin.create_topic("kills").partitions) == 4
    sent = 0
    with sdk.Producer(bootstrap) as producer:
        for name in [p.name for p in cluster.processes]:
            for _ in range(20):
                values = [b"%d" % number for number in range(sent, sent + 100)]
                producer.send_many(
                    "kills", values, keys=[b"key %d" % (number % 8) for number in range(sent, sent + 100)]
                )
                sent += 100
            cluster.kill(name)
            cluster.wait_ready()
        producer.flush(60)
    by_key: dict[bytes, list[int]] = {}
    with sdk.Consumer("kills", bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer:
        got = 0
        while got < sent:
            records = consumer.poll(30_000)
            assert records, f"{got} of {sent} records came"
            for record in records:
                by_key.setdefault(record.key, []).append(int(record.value))
            got += len(records)
        assert consumer.poll(500) == []
    assert {key: numbers == sorted(numbers) for key, numbers in by_key.items()} == dict.fromkeys(by_key, True)
    assert sorted(number for numbers in by_key.values() for number in numbers) == list(range(sent))


@pytest.mark.timeout(600)
def test_the_demo_proves_itself_after_a_ctrl_c_and_a_kill(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace_cli", "demo", "--rate", "20000", "--no-spark"]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert first.stdout is not None
    for line in first.stdout:
        if line.startswith("written") and "read       0" not in line:
            break
    first.send_signal(signal.SIGINT)
    said, _ = first.communicate(timeout=30)
    assert first.returncode == 130, said
    assert "Traceback" not in said
    assert processes_on(tmp_path) == []

    again = subprocess.Popen(
        [*command, "--connect"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert again.stdout is not None
    said = ""
    victims = ["controller-1", "broker-1"]
    for line in again.stdout:
        said += line
        if line.startswith("written") and victims:
            told = json.loads((tmp_path / ".headrace" / "cluster.json").read_text())
            victim = victims.pop()
            process = next(p for p in told["processes"] if p["name"] == victim)
            subprocess.run(["kill", "-9", str(process["pid"])], check=True)
    assert again.wait(90) == 0, said
    assert "records are there from an earlier run" in said
    assert "broker-1 was killed by SIGKILL" in said
    assert "controller-1 was killed by SIGKILL" in said
    assert f"Verified: exactly {ROWS:,} records in topic flights" in said
    assert "Streams: killed once, and it agrees" in said
    assert "Connect: killed 3 times, and both tables" in said
    assert "/docs" in said
    assert processes_on(tmp_path) == []

    kept = run("demo", "--no-spark", cwd=tmp_path, timeout=120)
    assert "Streams: it agrees" in kept
    assert "all of them kept from an earlier run" in kept
    assert "--fresh" in kept

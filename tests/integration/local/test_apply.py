"""``headrace apply`` and ``headrace cluster can-remove`` against a whole cluster of real processes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from tests.integration.local.conftest import MakeCluster, headrace

pytestmark = pytest.mark.integration


def run(*argv: str, cwd: Path, stdin: object = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command that is to end with ``code``."""
    done = headrace(*argv, cwd=cwd, stdin=None if stdin is None else json.dumps(stdin), timeout=90)
    assert done.returncode == code, f"{argv}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def test_a_file_is_applied_to_a_cluster_while_it_starts_and_again(tmp_path: Path, make_cluster: MakeCluster) -> None:
    wanted = {
        "cluster": {"configs": {"num.partitions": 2}},
        "topics": [
            {"name": "orders", "partitions": 3, "replicationFactor": 2, "configs": {"retention.ms": 86400000}},
            {"name": "audit"},
        ],
    }
    cluster = make_cluster(brokers=2, restart=False)
    cluster.start()
    where = ("--bootstrap", ",".join(cluster.bootstrap_servers))
    rows = json.loads(
        run("apply", "-f", "-", "--brokers", "2", "-o", "json", *where, cwd=tmp_path, stdin=wanted).stdout
    )["changes"]
    assert [row["change"] for row in rows] == ["set cluster configs", "create topic", "create topic"]
    described = json.loads(run("topic", "describe", "orders", "-o", "json", *where, cwd=tmp_path).stdout)
    assert [len(p["replicas"]) for p in described["partitions"]] == [2, 2, 2]
    assert described["configs"] == {"retention.ms": "86400000"}
    audit = json.loads(run("topic", "describe", "audit", "-o", "json", *where, cwd=tmp_path).stdout)
    assert len(audit["partitions"]) == 2, "the setting of the cluster was there first"

    assert "nothing to change" in run("apply", "-f", "-", *where, cwd=tmp_path, stdin=wanted).stderr
    more = {"topics": [{"name": "orders", "partitions": 4, "configs": {"retention.ms": None}}]}
    run("apply", "-f", "-", *where, cwd=tmp_path, stdin=more)
    described = json.loads(run("topic", "describe", "orders", "-o", "json", *where, cwd=tmp_path).stdout)
    assert (len(described["partitions"]), described["configs"]) == (4, {})
    bad = {"topics": [{"name": "a", "configs": {"retention.mss": 1}}]}
    assert "retention.mss" in run("apply", "-f", "-", *where, cwd=tmp_path, stdin=bad, code=2).stderr
    late = run("apply", "-f", "-", "--brokers", "3", "--timeout", "2", *where, cwd=tmp_path, stdin=more, code=5)
    assert "2 brokers up, 3 wanted" in late.stderr


def test_a_broker_may_go_when_it_holds_nothing(tmp_path: Path, make_cluster: MakeCluster) -> None:
    cluster = make_cluster(brokers=2, restart=False)
    cluster.start()
    where = ("--bootstrap", cluster.bootstrap_servers[0])
    run("topic", "create", "orders", "-p", "2", "-r", "1", *where, cwd=tmp_path)
    refused = run("cluster", "can-remove", "--brokers", "1,2", *where, cwd=tmp_path, code=1)
    assert "holds" in refused.stderr
    assert "decommission" in refused.stderr
    cluster.kill("broker-2")
    assert run("cluster", "can-remove", "--brokers", "2", *where, cwd=tmp_path, code=1).returncode == 1, (
        "its process went"
    )
    cluster.restart("broker-2")
    cluster.wait_ready()
    run("broker", "decommission", "2", "--wait", *where, cwd=tmp_path)
    freed = run("cluster", "can-remove", "--brokers", "2", "-o", "json", *where, cwd=tmp_path)
    assert json.loads(freed.stdout)["brokers"] == [{"id": 2, "state": "online", "replicas": 0, "partitions": []}]
    run("cluster", "can-remove", "--brokers", "7", *where, cwd=tmp_path)

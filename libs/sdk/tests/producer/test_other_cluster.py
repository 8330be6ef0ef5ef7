"""Where the local cluster was another one listens now: nothing is written there, and nothing read from it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from libs.sdk.tests.kit.broker_thread import BrokerThread
from services.broker.tests.kit.cluster import image_of

import headrace
from headrace import Consumer, Producer
from headrace.errors import InconsistentClusterId, InvalidConfig
from headrace_common.core.ids import TopicPartition


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    thread = BrokerThread({"t": 1})
    yield thread
    thread.stop()


@pytest.fixture
def cluster_file(broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cluster that had the address which the broker has now."""
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_PROFILE", "HEADRACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".headrace").mkdir()
    file = tmp_path / ".headrace" / "cluster.json"
    write(file, "mine", broker)
    return file


def write(file: Path, cluster_id: str, broker: BrokerThread) -> None:
    told = {"cluster_id": cluster_id, "data_dir": os.path.realpath(file.parent), "bootstrap_servers": [broker.address]}
    file.write_text(json.dumps(told))


def end_of(broker: BrokerThread) -> int:
    with Consumer(bootstrap_servers=broker.address) as consumer:
        tp = headrace.TopicPartition("t", 0)
        return consumer.end_offsets([tp])[tp]


@pytest.mark.usefixtures("cluster_file")
def test_a_record_is_not_acknowledged_by_another_cluster(broker: BrokerThread) -> None:
    before = end_of(broker)
    with Producer() as producer, pytest.raises(InconsistentClusterId, match=r"'standalone'.*names cluster 'mine'"):
        producer.send("t", b"for my own cluster").result(30)
    assert end_of(broker) == before


@pytest.mark.usefixtures("cluster_file")
def test_nothing_is_read_from_another_cluster(broker: BrokerThread) -> None:
    with pytest.raises(InconsistentClusterId), Consumer("t", auto_offset_reset="earliest") as consumer:
        consumer.poll(timeout_ms=30_000)


@pytest.mark.parametrize("damage", ["missing", "damaged", "copied"])
def test_no_record_goes_to_whoever_listens_where_the_file_does_not_say_whose_it_is(
    cluster_file: Path, broker: BrokerThread, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.finding.DEFAULT_BOOTSTRAP", broker.address)
    write(cluster_file, image_of({}).cluster_id, broker)
    match damage:
        case "missing":
            cluster_file.unlink()
        case "damaged":
            cluster_file.write_text("{")
        case "copied":
            shutil.copytree(cluster_file.parent, cluster_file.parent.parent / "copy" / ".headrace")
            monkeypatch.chdir(cluster_file.parent.parent / "copy")
    before = end_of(broker)
    with pytest.raises(InvalidConfig, match="`headrace up`"), Producer() as producer:
        producer.send("t", b"for my own cluster").result(30)
    assert end_of(broker) == before


def test_the_cluster_of_the_file_is_found_without_arguments(cluster_file: Path, broker: BrokerThread) -> None:
    write(cluster_file, image_of({}).cluster_id, broker)
    with Producer() as producer:
        assert producer.send("t", b"value").result(30).partition == TopicPartition("t", 0).partition

"""
Scenarios of operation: more brokers and fewer again, and metadata restored from a backup that is older than the data.
"""

from __future__ import annotations

import time

from .kills import CONTROLLED_GAP_S
from .kube import Failed, wait_until
from .life import READY_S, Ask, client, own, ready_seconds
from .results import Result
from .stage import Stage

BEFORE, AFTER, LATE = 10_000, 5_000, 100_000
FENCED_S = 60.0


def scaled(stage: Stage, result: Result) -> None:
    """A fourth broker, load moved onto it; refused to go while it holds replicas; decommissioned, and gone."""
    release = stage.release
    pod = f"{release.stateful('broker')}-3"
    with stage.loaded(result) as load:
        with result.window("scaled out", gap_target=CONTROLLED_GAP_S):
            release.upgrade({"statefulset.replicas": "4"})
            release.wait_rolled_out()
            seconds = ready_seconds(stage.kube.get("pod", pod))
            result.figure("a new broker: pod ready after its container started (± 1)", seconds, "s", READY_S)
        with result.window("rebalanced", gap_target=CONTROLLED_GAP_S):
            began = time.monotonic()
            release.cli("cluster", "rebalance", "--execute", "--wait", "--timeout", "240", seconds=270)
            result.figure("rebalanced", time.monotonic() - began)
        held = held_by(stage, 3)
        result.figure("replicas on the new broker", held, "")
        if not held:
            result.problems.append("after the rebalance the new broker holds nothing")
        with result.window("scale-in refused", gap_target=CONTROLLED_GAP_S):
            _refused(stage, result)
        with result.window("decommissioned", gap_target=CONTROLLED_GAP_S):
            began = time.monotonic()
            release.cli("broker", "decommission", "3", "--wait", "--timeout", "240", seconds=270)
            result.figure("decommissioned", time.monotonic() - began)
        with result.window("scaled in", gap_target=CONTROLLED_GAP_S):
            release.upgrade({"statefulset.replicas": "3"})
            release.wait_rolled_out()
            wait_until(f"{pod} is gone", lambda: len(release.pods("broker")) == 3, 150)
        load.plan["brokers"] = release.broker_addresses()
    stage.kube.delete("pvc", f"data-{pod}")


def held_by(stage: Stage, broker: int) -> int:
    """Replicas of topics on this broker, as the cluster has them."""
    found = 0
    for topic in stage.release.cli_json("topic", "list")["topics"]:
        described = stage.release.cli_json("topic", "describe", topic["name"])
        found += sum(broker in one["replicas"] for one in described["partitions"])
    return found


def _refused(stage: Stage, result: Result) -> None:
    release = stage.release
    try:
        release.upgrade({"statefulset.replicas": "3"})
    except Failed as failed:
        result.notes.append(f"scale-in was refused: {' '.join(failed.said.split())[-300:]}")
    else:
        result.problems.append("a broker that holds replicas could be taken away")
    if release.replicas("broker") != 4:
        result.problems.append(f"after the refusal {release.replicas('broker')} brokers are wanted")


def restored(stage: Stage, result: Result) -> None:
    """
    A backup; then a topic is made, replicas move, in-sync replicas shrink and 100,000 records are acknowledged.

    Then the metadata is restored: nothing acknowledged is lost, and the topic that the backup does not know is there.
    """
    with own(stage, "restore") as here:
        release = here.release
        release.install()
        release.wait_rolled_out()
        with client(here) as ask:
            make_topic(here, "before")
            write(ask, "before", 0, BEFORE)
            back_up(here, "by-hand")
            make_topic(here, "after")
            write(ask, "after", 0, AFTER)
            release.cli("partition", "move", "before-0=0,1", "--wait", "--timeout", "120", seconds=150)
            shrink(here, "before")
            began = time.monotonic()
            write(ask, "before", BEFORE, LATE)
            write(ask, "after", AFTER, AFTER)
            here.say(f"{LATE + AFTER} records acknowledged in {time.monotonic() - began:.0f} s")
        began = time.monotonic()
        release.upgrade({"etcd.restore.enabled": "true"}, "--timeout", "15m", seconds=900)
        here.say(release.kube.kubectl("logs", f"job/{release.fullname}-etcd-restore").strip()[-1_000:])
        result.figure("restored into etcd", time.monotonic() - began)
        release.unset("etcd.restore.enabled")
        release.upgrade(seconds=600)
        release.wait_rolled_out(600)
        result.figure("from the beginning of the restore to all pods ready", time.monotonic() - began)
        result.notes.append(f"health: {release.cli('cluster', 'health').strip()}")
        with client(here) as ask:
            for topic, records in (("before", BEFORE + LATE), ("after", 2 * AFTER)):
                found = int(ask(_COUNT.format(topic=topic, records=records), 300).strip())
                result.figure(f"records of {topic} there after the restore", found, f"of {records}")
                result.acknowledged += records
                result.read += found
                if found < records:
                    result.anomalies["lost-write"] += records - found
            write(ask, "after", 2 * AFTER, AFTER)


def make_topic(stage: Stage, name: str) -> None:
    """Six partitions on all brokers."""
    stage.release.cli("topic", "create", name, "-p", "6", "-r", "3")


def back_up(stage: Stage, name: str) -> None:
    """By the chart's CronJob, now."""
    cron = f"cronjob/{stage.release.fullname}-etcd-backup"
    stage.kube.kubectl("create", "job", name, f"--from={cron}")
    stage.kube.kubectl("wait", "--for=condition=Complete", f"job/{name}", "--timeout=180s", seconds=190)
    stage.say(f"backup: {stage.kube.kubectl('logs', f'job/{name}').strip()[-300:]}")


def shrink(stage: Stage, topic: str) -> None:
    """The third broker goes away, behind helm's back, until it is out of every in-sync set of the topic."""
    stage.kube.kubectl("scale", "statefulset", stage.release.stateful("broker"), "--replicas=2")
    wait_until("the third broker is gone", lambda: len(stage.release.pods("broker")) == 2, 150)

    def look() -> bool:
        described = stage.release.cli_json("topic", "describe", topic)
        return all(2 not in one["isr"] for one in described["partitions"])

    wait_until("the third broker is out of sync", look, FENCED_S, 2)


def write(ask: Ask, topic: str, first: int, count: int) -> None:
    """Acknowledged when it returns."""
    ask(_WRITE.format(topic=topic, first=first, end=first + count), 300)


_WRITE = """
import headrace
values = [b"%d" % n for n in range({first}, {end})]
with headrace.Producer() as producer:
    for delivery in producer.send_many("{topic}", values, keys=values):
        delivery.result(120)
"""
_COUNT = """
import headrace, time
seen, deadline = set(), time.monotonic() + 120
with headrace.Consumer("{topic}", auto_offset_reset="earliest") as consumer:
    while len(seen) < {records} and time.monotonic() < deadline:
        for record in consumer.poll(timeout_ms=1_000, max_records=5_000):
            assert int(record.value) not in seen, f"{{record.value}} is there twice"
            seen.add(int(record.value))
print(len(seen))
"""

"""
``python -m bench [--only NAME,…] [--peer] [--full] [--quick] [--runs N]``: print a table, write bench/results*.json.

Rows of benchmarks that were not run stay in the file as they were; ``--quick`` writes nothing.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from bench import (
    codec,
    compaction,
    compaction_rate,
    connect,
    connect_peer,
    connect_workers,
    consumer_micro,
    groups,
    inspection,
    peer,
    peer_replication,
    replication,
    retention,
    scale,
    sdk_micro,
    security,
    sizes,
    strangers,
    streams,
    streams_cluster,
    streams_long,
    streams_peer,
    streams_restore,
    streams_state,
    streams_workloads,
    throughput,
    transactions,
)
from bench.machine import warn_if_busy
from bench.rows import Row, save, table

RUNS, PEER_RUNS = 3, 7

Suite = Callable[[int], list[Row]]

OWN: dict[str, Suite] = {
    "codec": lambda runs: _rows(codec.run(runs)),
    "sdk": lambda runs: _rows(sdk_micro.run(runs)),
    "consumer": lambda runs: _rows(consumer_micro.run(runs)),
    "produce": throughput.produce,
    "stream": throughput.produce_stream,
    "consume": throughput.consume,
    "latency": throughput.latency,
    "cold": scale.cold_start,
    "partitions-1000": scale.partitions,
    "log": scale.long_log,
    "replicated-produce": replication.produce,
    "replicated-latency": replication.latency,
    "replicated-idle": replication.idle,
    "replicated-failover": replication.failover,
    "replicated-gap": replication.gap,
    "strangers": strangers.beside,
    "groups-heartbeat": groups.heartbeats,
    "groups-large": groups.large,
    "groups-failover": groups.failover,
    "groups-moves": groups.moves,
    "transactions": transactions.throughput,
    "transactions-reading": transactions.reading,
    "transactions-units": transactions.units,
    "streams-tasks": streams.tasks,
    "streams-words": streams_cluster.suite(streams_workloads.WORDS, 500_000),
    "streams-windows": streams_cluster.suite(streams_workloads.WINDOWED, 1_000_000),
    "streams-join": streams_cluster.suite(streams_workloads.JOIN, 1_000_000),
    "streams-function": streams_cluster.suite(streams_workloads.FUNCTION, 300_000),
    "streams-latency": streams_cluster.latency,
    "streams-commit": streams_cluster.commits,
    "streams-restore": streams_restore.restore,
    "streams-state": streams_state.larger,
    "streams-workers": streams_cluster.workers,
    "streams-idle": streams_cluster.idle,
    **connect.SUITES,
    **connect_workers.SUITES,
    "security": security.run,
    "inspection": inspection.run,
    "compaction-rate": compaction_rate.run,
    "compaction-space": compaction.space,
    "compaction-producing": compaction.producing,
    "compaction-reading": compaction.reading,
    "retention-space": compaction.steady,
    "retention-partitions": retention.checking,
}
PEER_FULL: dict[str, Suite] = streams_long.SUITES
FULL: dict[str, Suite] = {
    "partitions-5000": lambda runs: scale.partitions(runs, 5000),
    "log-5gb": lambda runs: scale.long_log(runs, 5.0),
}
PEER: dict[str, Suite] = {
    "peer-produce": peer.produce,
    "peer-synced": peer.produce_synced,
    "peer-consume": peer.consume,
    "peer-latency": peer.latency,
    "peer-replicated-produce": peer_replication.produce,
    "peer-replicated-latency": peer_replication.latency,
    "peer-replicated-gap": peer_replication.gap,
    "peer-transactions": transactions.peer_single,
    "peer-transactions-transform": transactions.peer_transform,
    "peer-streams": streams_peer.suite(
        streams_workloads.WORDS,
        500_000,
        streams_peer.kafka_streams(1, "≥ 3"),
        streams_peer.kafka_streams(2, "≥ 3"),
        streams_peer.quix("≥ 15"),
        streams_peer.faust("≥ 15", share=100),
    ),
    "peer-streams-windows": streams_peer.suite(
        streams_workloads.WINDOWED,
        1_000_000,
        streams_peer.kafka_streams(1, "≥ 2"),
        streams_peer.kafka_streams(2, "≥ 2"),
        streams_peer.quix("≥ 15"),
        streams_peer.faust("≥ 15"),
    ),
    "peer-streams-join": streams_peer.suite(
        streams_workloads.JOIN,
        1_000_000,
        streams_peer.kafka_streams(1, "≥ 2"),
        streams_peer.kafka_streams(2, "≥ 2"),
        streams_peer.quix("≥ 10"),
        streams_peer.faust("≥ 10"),
    ),
    "peer-streams-function": streams_peer.suite(
        streams_workloads.FUNCTION,
        300_000,
        streams_peer.kafka_streams(1, "≥ 0.2"),
        streams_peer.quix("≥ 1.5"),
        streams_peer.faust("≥ 3"),
    ),
    "peer-streams-restore": streams_peer.restore,
    **connect_peer.SUITES,
}


def _rows(found: list[dict[str, object]]) -> list[Row]:
    """Rows of the micro benchmarks: their baseline may be a figure or the name of what the ratio is to."""
    rows: list[Row] = []
    for row in found:
        named = row.get("baseline") if isinstance(row.get("baseline"), str) else None
        tidy = {**row, "target": str(row.get("target") or ""), "baseline": None if named else row.get("baseline")}
        rows.append(Row(**{**tidy, "note": f"to {named}" if named else str(row.get("note") or "")}))
    return rows


def _chosen(a: argparse.Namespace) -> dict[str, Suite]:
    if a.only:
        return {name: {**OWN, **FULL, **PEER, **PEER_FULL}[name] for name in a.only}
    own, long = (PEER, PEER_FULL) if a.peer else (OWN, FULL)
    return {**own, **(long if a.full else {})}


def main() -> int:
    """Run the suites asked for; an exception of one ends all, and leaves what the ones before it found."""
    everything = [*OWN, *FULL, *PEER, *PEER_FULL]
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of: {', '.join(everything)}")
    parser.add_argument("--peer", action="store_true", help="beside a real Kafka (Java 17 and Maven)")
    parser.add_argument("--full", action="store_true", help="also the long ones")
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that they run; writes no file")
    parser.add_argument("--runs", type=int, help=f"interleaved runs; else {RUNS}, and {PEER_RUNS} beside a peer")
    a = parser.parse_args()
    if wrong := [name for name in a.only or () if name not in everything]:
        parser.error(f"no benchmark is called {wrong[0]}; there are: {', '.join(everything)}")
    if a.quick:
        sizes.shrink()
    results: dict[str, list[Row]] = {"results.json": [], "results-peer.json": []}
    beside = PEER | PEER_FULL
    for name, suite in _chosen(a).items():
        print(f"… {name} (load {os.getloadavg()[0]:.1f})", file=sys.stderr, flush=True)
        into = results["results-peer.json" if name in beside else "results.json"]
        busy = "" if a.quick else warn_if_busy()
        rows = suite(a.runs or (PEER_RUNS if name in PEER else RUNS))
        for row in rows:
            row.note = "; ".join(filter(None, (row.note, busy)))
        into += rows
        if not a.quick:
            save(into, Path(__file__).parent / ("results-peer.json" if name in beside else "results.json"))
    print(table([row for rows in results.values() for row in rows]))
    return 0


if __name__ == "__main__":
    sys.exit(main())

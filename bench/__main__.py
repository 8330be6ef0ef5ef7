"""``python -m bench [--only NAME] [--peer] [--full] [--runs N]``: run, print a table, write bench/results.json."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

from bench import codec, consumer_micro, peer, scale, sdk_micro, throughput
from bench.rows import Row, table

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
}
FULL: dict[str, Suite] = {
    "partitions-5000": lambda runs: scale.partitions(runs, 5000),
    "log-5gb": lambda runs: scale.long_log(runs, 5.0),
}
PEER: dict[str, Suite] = {
    "peer-produce": peer.produce,
    "peer-synced": peer.produce_synced,
    "peer-consume": peer.consume,
    "peer-latency": peer.latency,
}


def _rows(found: list[dict[str, object]]) -> list[Row]:
    """Rows of the micro benchmarks: their baseline may be a figure or the name of what the ratio is to."""
    rows: list[Row] = []
    for row in found:
        named = row.get("baseline") if isinstance(row.get("baseline"), str) else None
        tidy = {**row, "target": str(row.get("target") or ""), "baseline": None if named else row.get("baseline")}
        rows.append(Row(**{**tidy, "note": f"to {named}" if named else str(row.get("note") or "")}))
    return rows


def main() -> int:
    """Run the suites asked for; exit code 1 when one could not be run."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--only", help=f"one of: {', '.join([*OWN, *FULL, *PEER])}")
    parser.add_argument("--peer", action="store_true", help="beside a real Kafka (Java 17 and Maven)")
    parser.add_argument("--full", action="store_true", help="also the long ones")
    parser.add_argument("--runs", type=int, default=3)
    a = parser.parse_args()
    everything = {**OWN, **FULL, **PEER}
    if a.only and a.only not in everything:
        parser.error(f"no benchmark is called {a.only}; there are: {', '.join(everything)}")
    chosen = {a.only: everything[a.only]} if a.only else PEER if a.peer else {**OWN, **(FULL if a.full else {})}
    results: list[Row] = []
    for name, suite in chosen.items():
        print(f"… {name}", file=sys.stderr, flush=True)
        results += suite(a.runs)
    path = Path(__file__).parent / ("results-peer.json" if a.peer else "results.json")
    path.write_text(json.dumps([r.as_json() for r in results], indent=1, ensure_ascii=False) + "\n")
    print(table(results))
    print(f"written to {path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else f"written to {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

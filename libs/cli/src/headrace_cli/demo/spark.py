"""
The end of the demo: Spark makes the sums per carrier too, into topic ``flights-by-carrier``, and they must be the
consumer's.

The program is ``headrace_cli/spark/entry/flights_by_carrier.py``, in a process of its own; its result is read back with
the SDK as every reader sees it, committed records only.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import orjson
from rich.table import Table

from headrace.finding import bootstrap_addresses
from headrace_cli.demo.tally import Carrier
from headrace_cli.exits import CommandFailed, ExitCode
from headrace_cli.spark import submit

TARGET: Final = "flights-by-carrier"
PROGRAM: Final = submit.HERE / "entry" / "flights_by_carrier.py"
CONF: Final = {
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
}
"""For one small job: what makes long ones fast costs this one half of its time."""
READ_SECONDS: Final = 30.0
LOG_LINES_SHOWN: Final = 12


def spark_sums(source: str, bootstrap: str, spark: submit.SparkHere, log: Path) -> dict[str, list[Carrier]]:
    """
    Run the program and read what it wrote.

    Args:
        source: the topic with the departures.
        bootstrap: addresses, with commas.
        spark: with what.
        log: where the program's output goes.

    Returns:
        By carrier, each record that was written: one, if all is well.

    Raises:
        CommandFailed: the program failed; the text has the end of its log.
    """
    from headrace_cli.demo.run import create_topic

    create_topic(bootstrap, TARGET, 1, {"cleanup.policy": "compact"})
    before = _end(bootstrap)
    program = submit.Program(
        file=PROGRAM,
        arguments=[source, TARGET],
        name="headrace-demo",
        conf=CONF,
        cluster=bootstrap_addresses(bootstrap),
    )
    with log.open("wb") as output:
        code = submit.run(program, spark, os.environ, stdout=output)
    if code != ExitCode.OK:
        raise CommandFailed(f"Spark ended with {code}:\n{_last_lines(log)}", hint=f"All it said is in {log}.")
    return _read_since(before, bootstrap)


def differences(ours: Mapping[str, Carrier], sparks: Mapping[str, Sequence[Carrier]]) -> list[str]:
    """What is not the same; empty when Spark wrote each carrier once, with the sums of the consumer."""
    wrong: list[str] = []
    for code in sorted({*ours, *sparks}):
        written = sparks.get(code, [])
        if len(written) != 1:
            wrong.append(f"{code} was written {len(written)} times by Spark")
        elif code not in ours:
            wrong.append(f"{code} is known to Spark only")
        elif written[0] != ours[code]:
            wrong.append(f"{code}: the consumer has {_format(ours[code])}, Spark {_format(written[0])}")
    return wrong


def table(sparks: Mapping[str, Sequence[Carrier]]) -> Table:
    """Spark's sums, the largest first."""
    shown = Table(title=f"By Spark, from topic {TARGET}", title_justify="left")
    shown.add_column("")
    for title in ("departures", "delay in all", "at arrival"):
        shown.add_column(title, justify="right", no_wrap=True)
    rows = [(code, carrier) for code, written in sparks.items() for carrier in written]
    for code, carrier in sorted(rows, key=lambda row: -row[1].departures):
        delays = (f"{minutes:+,} min" for minutes in (carrier.departure_delay_sum, carrier.arrival_delay_sum))
        shown.add_row(code, f"{carrier.departures:,}", *delays)
    return shown


def _end(bootstrap: str) -> int:
    from headrace import Consumer

    with Consumer(bootstrap_servers=bootstrap) as consumer:
        [end] = consumer.end_offsets([(TARGET, 0)]).values()
    return end


def _read_since(offset: int, bootstrap: str) -> dict[str, list[Carrier]]:
    from headrace import Consumer

    end = _end(bootstrap)  # all is in the log, and the end of the transactions may be a moment behind
    found: dict[str, list[Carrier]] = {}
    deadline = time.monotonic() + READ_SECONDS
    with Consumer(bootstrap_servers=bootstrap, isolation_level="read_committed") as consumer:
        consumer.assign([(TARGET, 0)])
        consumer.seek((TARGET, 0), offset)
        while consumer.position((TARGET, 0)) < end and time.monotonic() < deadline:
            for record in consumer.poll(200):
                fields = orjson.loads(record.value)
                found.setdefault(fields.pop("carrier"), []).append(Carrier(**fields))
    return found


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])


def _format(carrier: Carrier) -> str:
    return ", ".join(f"{name} {value}" for name, value in dataclasses.asdict(carrier).items())

"""
A process for the storage tests to kill while it compacts.

``compacting_child.py write DIRECTORY POLICY SEED`` appends to three compacted logs and compacts them all the time,
until it dies; one line ``a LOG END`` per ack, and ``c LOG CLEANED_TO`` after each pass over a log.
``compacting_child.py inspect DIRECTORY`` opens and tells what is there.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from pathlib import Path

from compacted_log import CompactedLog, faults, put
from storage_batches import SMALL
from storage_child import ran, say

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import LogWrite
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Offset

KEYS = (20, 200, 3000)
"""Of each log: in the first whole segments go, in the last every batch loses some records."""


async def write(path: Path, policy: str, seed: int) -> None:
    chance = random.Random(seed)
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    assert not logs.report.damaged, logs.report
    found = {log.log: log for log in logs.list_recovered()}
    if not found:
        compacted = [CompactedLog(logs, logs.new_log_id(), keys) for keys in KEYS]
        await put(logs, [one for log in compacted for one in log.create()])
    else:
        compacted = [CompactedLog(logs, log, KEYS[at]) for at, log in enumerate(sorted(found))]
        for log in compacted:
            log.resume(found[log.log])
    say("ready")

    async def clean() -> None:
        while True:
            for log in compacted:
                before = log.cleaned_to
                await log.clean()
                if log.cleaned_to > before:
                    say(f"c {log.log} {log.cleaned_to}")
            await logs.reclaim()
            await asyncio.sleep(0)

    cleaner = asyncio.create_task(clean())
    while not cleaner.done():
        chosen = chance.sample(compacted, chance.randint(1, 3))
        group: list[LogWrite] = []
        for log in chosen:
            group += log.append(chance.choice((1, 7, 60, 400)))
        await put(logs, group)
        if policy != "os":
            await logs.sync()
            for log in chosen:
                logs.note_synced(log.log, Offset(log.end), 1)
        for log in chosen:
            say(f"a {log.log} {log.end}")
        await asyncio.sleep(0)
    cleaner.result()


async def inspect(path: Path) -> None:
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    wrong: list[str] = []
    for at, log in enumerate(logs.list_recovered()):
        try:
            wrong += await faults(logs, log.log, log.log_end, KEYS[at])
        except HeadraceError as error:
            wrong.append(f"refused: {error}")
        sizes = {row.base_offset: row.size for row in log.segments if row.sealed_at_ms is not None}
        for row in logs.index(log.log, Offset(0), log.log_end):
            if row.segment_base in sizes:
                sizes[row.segment_base] -= row.size
        wrong += [f"log {log.log}: segment {base} says {off} bytes too many" for base, off in sizes.items() if off]
    found = {int(log.log): (log.state.cleaned_to, log.log_end) for log in logs.list_recovered()}
    report = logs.report
    damaged = [(d.partition.partition, d.recovered_end, d.evident_end, d.reason) for d in report.damaged]
    say(json.dumps({"clean": report.clean, "cuts": report.cuts, "damaged": damaged, "logs": found, "wrong": wrong}))
    await logs.close(None)
    directory.close()


if __name__ == "__main__":
    sys.exit(ran(write, inspect))

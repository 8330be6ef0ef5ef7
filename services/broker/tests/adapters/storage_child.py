"""
A process for the storage tests to kill: writes and says what is acknowledged, or opens and tells what is there.

``storage_child.py write DIRECTORY POLICY SEED`` appends to eight logs until it dies; one line ``a LOG END`` per ack.
``storage_child.py inspect DIRECTORY`` opens, reads everything, prints one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from storage_batches import LOGS, SMALL, Writer, make_batch, partition, size_of

from headrace_broker.adapters.data_directory import DataDirectory
from headrace_broker.adapters.rocksdb_log import RocksDbLogs
from headrace_broker.core.rows import DropPrefix, LogWrite, PutState, StateRow
from headrace_broker.ports import WriteStalled
from headrace_common.core.batch import check_crc, read_header
from headrace_common.core.errors import HeadraceError
from headrace_common.core.ids import Offset

FAILED, REFUSED = 3, 4


def say(text: str) -> None:
    """One line, at once."""
    os.write(1, f"{text}\n".encode())


async def write(path: Path, policy: str, seed: int) -> None:
    chance = random.Random(seed)
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    assert not logs.report.damaged, logs.report
    writers = [Writer(found.log, found.log_end) for found in logs.list_recovered()]
    starts = {found.log: found.state.log_start for found in logs.list_recovered()}
    if not writers:
        writers = [Writer(logs.new_log_id()) for _ in range(LOGS)]
        logs.write([one for writer in writers for one in writer.create()])
        starts = {writer.log: Offset(0) for writer in writers}
    say("ready")
    turn = 0
    while True:
        turn += 1
        chosen = chance.sample(writers, chance.randint(1, 4))
        group: list[LogWrite] = []
        for writer in chosen:
            for _ in range(chance.randint(1, 3)):
                group += writer.append(1, size=size_of(writer.log, writer.end))
        if turn % 40 == 0:
            writer = chosen[0]
            start = Offset((starts[writer.log] + writer.end) // 20 * 10)
            starts[writer.log] = start
            state = StateRow(partition(int(writer.log)), start, start)
            group += [PutState(writer.log, state), DropPrefix(writer.log, start)]
        while True:
            try:
                logs.write(group)
                break
            except WriteStalled:
                await asyncio.sleep(0.005)
        if policy != "os":
            await logs.sync()
            for writer in chosen:
                logs.note_synced(writer.log, Offset(writer.end), writer.epoch)
        for writer in chosen:
            say(f"a {writer.log} {writer.end}")
            writer.batches.clear()
            writer.rows.clear()


async def inspect(path: Path) -> None:
    directory = DataDirectory.open(path)
    logs = RocksDbLogs.open(directory, SMALL)
    report = logs.report
    wrong: list[str] = []
    found = {}
    for log in logs.list_recovered():
        found[int(log.log)] = (log.state.log_start, log.log_end)
        expected = int(log.state.log_start)
        rows = list(logs.index(log.log, log.state.log_start, log.log_end))
        for row in rows:
            if row.base_offset != expected:
                wrong.append(f"log {log.log}: {row.base_offset} follows {expected}")
            expected = row.next_offset
            try:
                (batch,) = await logs.read(log.log, [row])
                check_crc(batch, read_header(batch))
            except HeadraceError as error:
                wrong.append(f"refused: {error}")
                continue
            if batch != make_batch(row.base_offset, 10, row.size, row.leader_epoch, log.log):
                wrong.append(f"log {log.log}: other bytes at {row.base_offset}")
        if rows and expected != log.log_end:
            wrong.append(f"log {log.log}: ends at {expected} instead of {log.log_end}")
    damaged = [(d.partition.partition, d.recovered_end, d.evident_end, d.reason) for d in report.damaged]
    outcome = {"clean": report.clean, "cuts": report.cuts, "damaged": damaged, "logs": found, "wrong": wrong}
    say(json.dumps(outcome))
    await logs.close(None)
    directory.close()


def ran(
    write: Callable[[Path, str, int], Coroutine[Any, Any, None]], inspect: Callable[[Path], Coroutine[Any, Any, None]]
) -> int:
    """Do what the command line says; the exit code."""
    command, path = sys.argv[1], Path(sys.argv[2])
    try:
        with asyncio.Runner() as runner:
            if command == "write":
                runner.run(write(path, sys.argv[3], int(sys.argv[4])))
            else:
                runner.run(inspect(path))
    except HeadraceError as error:
        say(f"{'failed' if command == 'write' else 'refused'}: {error}")
        return FAILED if command == "write" else REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(ran(write, inspect))

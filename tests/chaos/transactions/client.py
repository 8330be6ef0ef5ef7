"""
A process of the checker's load: ``client.py BOOTSTRAP TOPIC SLOT NUMBER SEED STOP HISTORY KIND``.

KIND: ``assign`` and ``subscribe`` do transactions of one to four sends and polls, with positions chosen or given by a
group; ``plain`` sends and polls without (``headrace_verify.client``). HISTORY is written call by call. It ends when the
file STOP exists; with 3 when it is fenced.
"""

from __future__ import annotations

import random
import sys
import time
from pathlib import Path
from typing import Any

from headrace import Consumer, HeadraceError, Producer
from headrace_verify.client import MOVED, Client, History, plain, transact

FENCED = 3
PAUSE_S = 0.02
TIMEOUT_MS = 8_000


def tell(error: HeadraceError, doing: str) -> None:
    """For who reads what the process said."""
    print(f"{type(error).__name__} ({doing}): {error}", flush=True)


def main(bootstrap: str, topic: str, slot: str, number: int, seed: str, stop: Path, history: Path, kind: str) -> int:
    """Until it is told to end."""
    chance = random.Random(seed)
    group = {"assign": f"{topic}-{slot}", "subscribe": topic, "plain": None}[kind]
    reading: dict[str, Any] = {"auto_offset_reset": "earliest", "isolation_level": "read_committed"}
    reading |= {} if group is None else {"group_id": group, "enable_auto_commit": False}
    writing: dict[str, Any] = (
        {} if kind == "plain" else {"transactional_id": f"{topic}-{slot}", "transaction_timeout_ms": TIMEOUT_MS}
    )
    with (
        Producer(bootstrap, linger_ms=0, **writing) as producer,
        Consumer(bootstrap_servers=bootstrap, **reading) as consumer,
    ):
        client = Client(producer, consumer, topic, History.in_file(history, number), number, tell)
        if kind == "subscribe":
            client.subscribe()
        else:
            client.choose(begin=kind == "plain")
        ready = ["ready"]
        step = plain if kind == "plain" else transact
        while not stop.exists():
            if not step(client, chance):
                return FENCED
            if kind != "subscribe" and chance.random() < MOVED:
                client.choose(begin=True)
            if ready:
                print(ready.pop(), flush=True)
            time.sleep(PAUSE_S)
    return 0


if __name__ == "__main__":
    args = sys.argv[1:]
    sys.exit(main(args[0], args[1], args[2], int(args[3]), args[4], Path(args[5]), Path(args[6]), args[7]))

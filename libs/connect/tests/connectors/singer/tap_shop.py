#!/usr/bin/env python3
"""
A tap for tests, after the specification of Singer: orders by a number that is also their bookmark, customers by a time.

It begins at a bookmark, and not behind it, as the specification asks. ``do`` of its configuration has it misbehave.
Uses the standard library alone: it is run as a program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ORDERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "id": {"type": "integer"},
        "price": {"type": ["null", "number"], "multipleOf": 0.01},
        "at": {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]},
    },
    "required": ["id"],
}
CUSTOMERS: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "changed": {"type": "string", "format": "date-time"}},
    "required": ["id", "changed"],
}
STREAMS = {"orders": (ORDERS, "id"), "customers": (CUSTOMERS, "changed")}
ROWS = 30
LAST = 39
"""The number of the last message of a run."""
HOLDS = "import time; time.sleep(600)"
"""A process that has the output open, and does nothing."""


def rows_of(stream: str) -> list[dict[str, Any]]:
    """All rows; the last two customers have one time."""
    if stream == "orders":
        return [{"id": n, "price": n + 0.25, "at": f"2024-05-01T10:{n:02d}:00Z"} for n in range(20)]
    return [{"id": 100 + n, "changed": f"2024-05-01T00:00:{min(n, 8):02d}Z"} for n in range(10)]


def discover() -> dict[str, Any]:
    """The catalog."""
    streams = []
    for name, (schema, bookmark) in STREAMS.items():
        about = {"inclusion": "available", "table-key-properties": ["id"], "replication-key": bookmark}
        places = [{"breadcrumb": [], "metadata": about}]
        places += [
            {"breadcrumb": ["properties", field], "metadata": {"inclusion": "available"}}
            for field in schema["properties"]
        ]
        streams.append({"tap_stream_id": f"shop-{name}", "stream": name, "schema": schema, "metadata": places})
    return {"streams": streams}


def chosen(catalog: dict[str, Any] | None) -> list[str]:
    """The streams to read."""
    if catalog is None:
        return list(STREAMS)
    marked = {
        one["stream"]: next(place["metadata"] for place in one["metadata"] if not place["breadcrumb"])
        for one in catalog["streams"]
    }
    return [name for name in STREAMS if marked[name].get("selected")]


def messages(
    config: dict[str, Any], state: dict[str, Any] | None, catalog: dict[str, Any] | None
) -> Iterator[dict[str, Any]]:
    """One run: the rows of the streams by turns, and a STATE after every few of them."""
    bookmarks = dict((state or {}).get("bookmarks", {}))
    left = {}
    for stream in chosen(catalog):
        schema, key = STREAMS[stream]
        yield {
            "type": "SCHEMA",
            "stream": stream,
            "schema": schema,
            "key_properties": ["id"],
            "bookmark_properties": [key],
        }
        begin = bookmarks.get(stream)
        left[stream] = [row for row in rows_of(stream) if begin is None or row[key] >= begin]
    count, every = 0, int(config.get("state_every", 4))
    while any(left.values()):
        for stream, rows in left.items():
            if not rows:
                continue
            row = rows.pop(0)
            yield {"type": "RECORD", "stream": stream, "record": row, "time_extracted": "2024-05-02T00:00:00Z"}
            bookmarks[stream] = row[STREAMS[stream][1]]
            count += 1
            if every and count % every == 0:
                yield {"type": "STATE", "value": {"bookmarks": dict(bookmarks)}}
    if every:
        yield {"type": "STATE", "value": {"bookmarks": bookmarks}}


def half() -> None:
    """End with half a line."""
    sys.stdout.write('{"type": "STA')
    sys.stdout.flush()
    os._exit(0)


def misbehave(config: dict[str, Any], config_file: str) -> None:
    """What ``do`` says; its log has more in it than it should."""
    do = config["do"]
    sys.stderr.write(f"login with {config.get('password')} at {config.get('url')}\n")
    sys.stderr.flush()
    match do["what"]:
        case "exit":
            sys.exit(int(do["code"]))
        case "die":
            os.kill(os.getpid(), 9)
        case "hang":
            time.sleep(600)
        case "close":
            os.close(1)
            time.sleep(600)
        case "print":
            sys.stdout.write(str(do["text"]) * int(do.get("times", 1)) + "\n")
        case "fork":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            Path(do["file"]).write_text(json.dumps({"child": child.pid, "config": config_file}))
            time.sleep(600)
        case "half":
            half()
        case "leave":
            child = subprocess.Popen([sys.executable, "-c", HOLDS], start_new_session=bool(do.get("apart")))
            Path(do["file"]).write_text(str(child.pid))
            if do.get("half"):
                half()
            if do.get("dies"):
                sys.stdout.write('{"type": "REC')
                sys.stdout.flush()
                os.kill(os.getpid(), 9)
        case "look":
            about = {"mode": oct(os.stat(config_file).st_mode & 0o777), "config": config_file}
            Path(do["file"]).write_text(json.dumps(about | {"environment": dict(os.environ), "cwd": os.getcwd()}))


def main() -> None:
    """As every tap."""
    parser = argparse.ArgumentParser()
    for option in ("--config", "--state", "--catalog", "--properties"):
        parser.add_argument(option)
    parser.add_argument("--discover", action="store_true")
    given = parser.parse_args()
    read = {
        name: json.loads(Path(path).read_text()) if (path := getattr(given, name)) else None
        for name in ("config", "state", "catalog", "properties")
    }
    do = read["config"].get("do") or {"when": "never"}
    if given.discover:
        if do["when"] == "discover":
            misbehave(read["config"], given.config)
        json.dump(discover(), sys.stdout)
        return
    for number, message in enumerate(messages(read["config"], read["state"], read["catalog"] or read["properties"])):
        if number == do["when"]:
            misbehave(read["config"], given.config)
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()

"""
Makes the calls to Kafka's own Connect runtime, and says where it answers otherwise than ``kafka.json`` has it.

    python -m services.connect.tests.differential.record [--keep]

With ``--keep`` its answers are kept there. Needs Java 17 and Maven, and a minute; so tests compare ours with what was
kept.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final

from bench.kafka_connect import KafkaConnect
from bench.kafka_side import KafkaSide
from confluent_kafka.admin import AdminClient, NewTopic
from services.connect.tests.differential.calls import CALLS, FILE, Call
from services.connect.tests.differential.shapes import find_differences

KEPT: Final = Path(__file__).with_name("kafka.json")
VERSION: Final = "4.3.1"
_WAIT_SECONDS: Final = 60.0
_PAUSE_SECONDS: Final = 0.5
_ELEMENTS_MAX: Final = 3
"""Of a list that are kept: all have one shape."""


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="connect-") as folder, KafkaSide.running(warm=False) as kafka:
        answers = _record(Path(folder), kafka.bootstrap)
    if "--keep" in sys.argv[1:]:
        lines = ",\n".join(f"{json.dumps(label)}: {json.dumps(one)}" for label, one in answers.items())
        KEPT.write_text(f'{{"version": {json.dumps(VERSION)}, "answers": {{\n{lines}\n}}}}\n')
        return 0
    kept = json.loads(KEPT.read_text())["answers"]
    lines = [line for label in answers for line in _compare(label, kept.get(label), answers[label])]
    print("\n".join(lines) or "Kafka answers as it did")
    return 1 if lines else 0


def _compare(label: str, kept: Any, found: Any) -> list[str]:
    if kept is None:
        return [f"{label}: was not asked before"]
    if kept["status"] != found["status"]:
        return [f"{label}: {kept['status']} before, {found['status']} now"]
    return [f"{label}: {line}" for line in find_differences(kept["body"], found["body"])]


def _record(folder: Path, bootstrap: str) -> dict[str, Any]:
    file = folder / "lines.txt"
    file.write_text("".join(f"line {number}\n" for number in range(100)))
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    for future in admin.create_topics([NewTopic("lines", 1, 1)]).values():
        future.result(60)
    with KafkaConnect.running(folder, bootstrap) as worker:
        port = worker.port
        return {call.label: _keep(ask(port, call, str(file)), str(file), port) for call in CALLS}


def ask(port: int, call: Call, file: str, *, ours: bool = False) -> tuple[int, Any]:
    """The answer, as soon as it is what the call waits for."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        status, body = _send(port, call, file, ours)
        good = call.until_status is None or status == call.until_status
        if good and (call.until is None or (status < 300 and _holds(call, body))):
            return status, body
        if time.monotonic() > deadline:
            print(f"{call.label}: what was waited for did not come: {status} {str(body)[:300]}", file=sys.stderr)
            return status, body
        time.sleep(_PAUSE_SECONDS)


def _holds(call: Call, body: Any) -> bool:
    try:
        return call.until is None or bool(call.until(body))
    except (KeyError, TypeError):
        return False


def _send(port: int, call: Call, file: str, ours: bool = False) -> tuple[int, Any]:
    connection = HTTPConnection("127.0.0.1", port, timeout=120)
    try:
        connection.request(call.method, call.path, call.content(file, ours=ours), call.headers)
        answer = connection.getresponse()
        content = answer.read()
    finally:
        connection.close()
    try:
        return answer.status, json.loads(content) if content else None
    except ValueError:
        return answer.status, {"text": content.decode(errors="replace")[:500]}


def _keep(answer: tuple[int, Any], file: str, port: int) -> dict[str, Any]:
    status, body = answer
    text = json.dumps(_shortened(body)).replace(file, FILE).replace(f"127.0.0.1:{port}", "worker:8083")
    return {"status": status, "body": json.loads(text)}


def _shortened(body: Any) -> Any:
    if isinstance(body, dict):
        return {key: _shortened(value) for key, value in body.items()}
    if isinstance(body, list):
        return [_shortened(item) for item in body[:_ELEMENTS_MAX]]
    return body if not isinstance(body, str) else body[:600]


if __name__ == "__main__":
    sys.exit(main())

"""
The same calls that Kafka's own runtime was asked (``record``), over the twin: equal statuses, keys and types, but for
the differences that have a reason.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from services.connect.tests.differential.calls import CALLS, FILE, Call
from services.connect.tests.differential.differences import DIFFERENCES
from services.connect.tests.differential.shapes import find_differences
from services.connect.tests.kit.rest import Rest, served

from headrace_connect_worker.ports import ConnectorOffset

_KAFKA = json.loads(Path(__file__).with_name("kafka.json").read_text())["answers"]
_BY_NAME = {"loggers", "expand info", "expand both", "expand something"}
_DATA = "/data/lines.txt"


async def _ask(rest: Rest, call: Call) -> tuple[int, Any]:
    content = call.content(_DATA, ours=True)
    answer = await rest.client.request(call.method, call.path, content=content, headers=call.headers)
    rest.herd.follow()
    if "s1" in rest.herd.state.connectors and not rest.herd.kept and call.label == "reset topics of nobody":
        rest.herd.kept["s1"] = [ConnectorOffset({"split": _DATA}, {"position": 5})]
    return answer.status_code, answer.json() if answer.content else None


def compare(call: Call, status: int, body: Any) -> list[str]:
    """Where an answer of ours is not Kafka's."""
    kafka = _KAFKA[call.label]
    if kafka["status"] != status:
        return [f"status {kafka['status']} with Kafka, {status} here: {str(body)[:200]}"]
    return find_differences(_of_one(call, kafka["body"]), _of_one(call, body))


def _of_one(call: Call, body: Any) -> Any:
    """Of answers whose keys are names, those of one."""
    return body.get("s1", next(iter(body.values()))) if call.label in _BY_NAME else body


async def test_answers_are_kafkas() -> None:
    wrong: list[str] = []
    async with served() as rest:
        for call in CALLS:
            found = compare(call, *await _ask(rest, call))
            if bool(found) != (call.label in DIFFERENCES):
                wrong += [f"{call.label}: {line}" for line in found or ["does not differ"]]
    assert not wrong, "\n".join(wrong)


def test_every_call_was_made_to_kafka() -> None:
    assert [call.label for call in CALLS] == list(_KAFKA)
    assert set(DIFFERENCES) <= set(_KAFKA)
    assert FILE in json.dumps(_KAFKA["config"])

"""REST's document tells of every member that an answer may have: the kept answers fit its schemas, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final, get_args

import pytest
from libs.common.tests.kit.document import Document

from headrace_admin.rpc import answer_types as types
from headrace_admin.rpc.models import Problem
from headrace_admin.rpc.schemas import components, ref_to

KEPT: Final = Path(__file__).parents[3] / "libs" / "common" / "tests" / "golden"
ANSWERS: Final[dict[str, Any]] = {
    "cluster": types.Cluster,
    "status": types.Status,
    "features": types.Features,
    "restore": types.RestoreStatus,
    "strays": types.Strays,
    "configs": types.ConfigEntries,
    "topics": types.Topics,
    "topic": types.Topic,
    "topic-without-logs": types.Topic,
    "topic-logs": types.TopicLogs,
    "broker-logs": types.Logs,
    "trimmed": types.TrimResult,
    "outcomes": types.Outcomes,
    "reassignments": types.Reassignments,
    "plan": types.Plan,
    "leaving": types.Leaving,
    "groups": types.Groups,
    "group": types.Group,
    "lag": types.GroupLag,
    "reset": types.ResetPlan,
    "deleted-offsets": types.OffsetOutcomes,
    "transactions": types.Transactions,
    "transaction": types.Transaction,
    "prepared": types.Prepared,
    "open": types.Open,
    "aborted": types.Aborted,
    "ended": types.Ended,
}
SCHEMAS: Final = components(types.ANSWERS) | {"Problem": Problem.model_json_schema()}


def document() -> Document:
    return Document({"components": {"schemas": SCHEMAS}, "paths": {}})


def test_all_kept_answers_are_looked_at() -> None:
    assert {file.stem for file in KEPT.glob("*.json")} == set(ANSWERS)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_fits_the_document(name: str) -> None:
    answer = get_args(ANSWERS[name])[1]
    for told in json.loads((KEPT / f"{name}.json").read_text()).values():
        if any(value is None for value in told.values()) and name in {"aborted", "ended", "status"}:
            continue  # never answered without a transaction, or a state
        assert document().find_misfit(ref_to(answer), told) is None


@pytest.mark.parametrize("name", ANSWERS)
def test_another_answer_does_not_fit(name: str) -> None:
    schema = ref_to(get_args(ANSWERS[name])[1])
    told = json.loads((KEPT / f"{name}.json").read_text())["every field"]
    assert document().find_misfit(schema, told | {"more": 1, "another": 1}) is not None
    for member in told:
        assert document().find_misfit(schema, {n: v for n, v in told.items() if n != member}) is not None
        assert document().find_misfit(schema, told | {member: object()}) is not None


def test_every_schema_is_described_by_the_protos() -> None:
    assert [name for name, schema in SCHEMAS.items() if not schema.get("description")] == []
    partition = SCHEMAS["Partition"]["properties"]
    assert partition["isr"]["description"] == "In-sync replicas."
    assert partition["leader"]["description"] == "Node id, or null when nobody leads."
    assert SCHEMAS["Node"]["properties"]["rack"]["description"].endswith("Null: none is known.")
    assert "healthy: All that is registered works" in SCHEMAS["Status"]["properties"]["state"]["description"]

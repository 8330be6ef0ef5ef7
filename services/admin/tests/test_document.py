"""The document of REST tells of every member that an answer may have: the kept answers fit its models, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import pytest

from headrace_admin.rpc import models, models_features, models_groups, models_replication, models_restore
from headrace_admin.rpc import models_transactions as txn

KEPT: Final = Path(__file__).parents[3] / "libs" / "common" / "tests" / "golden"
MODELS: Final[dict[str, type[models.Answer]]] = {
    "cluster": models.Cluster,
    "status": models_replication.Status,
    "features": models_features.Features,
    "restore": models_restore.RestoreStatus,
    "strays": models_restore.Strays,
    "configs": models.ConfigEntries,
    "topics": models.Topics,
    "topic": models.Topic,
    "topic-without-logs": models.Topic,
    "topic-logs": models.TopicLogs,
    "broker-logs": models.Logs,
    "trimmed": models.TrimResult,
    "outcomes": models_replication.Outcomes,
    "reassignments": models_replication.Reassignments,
    "plan": models_replication.Plan,
    "leaving": models_replication.Leaving,
    "groups": models_groups.GroupList,
    "group": models_groups.Group,
    "lag": models_groups.GroupLag,
    "reset": models_groups.ResetPlan,
    "deleted-offsets": models_groups.OffsetOutcomes,
    "transactions": txn.TransactionList,
    "transaction": txn.Transaction,
    "prepared": txn.PreparedList,
    "open": txn.OpenList,
    "aborted": txn.AbortedTransaction,
    "ended": txn.EndedHanging,
}


def test_all_kept_answers_are_looked_at() -> None:
    assert {file.stem for file in KEPT.glob("*.json")} == set(MODELS)


@pytest.mark.parametrize("name", MODELS)
def test_an_answer_fits_the_document(name: str) -> None:
    kept = json.loads((KEPT / f"{name}.json").read_text())
    for told in kept.values():
        if any(value is None for value in told.values()) and name in {"aborted", "ended", "status"}:
            continue  # never answered without a transaction, or a state
        assert MODELS[name].model_validate(told).model_dump(by_alias=True).keys() == told.keys()

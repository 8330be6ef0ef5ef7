"""
``postgres-cdc`` tells of changes as Debezium's own connector does (``record``): keys, values, their types, tombstones
and headers, but for the differences that have a reason.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from tests.integration.connect.debezium.changes import PREFIX, TABLES, VARIANTS, changes_of
from tests.integration.connect.debezium.differences import DIFFERENCES
from tests.integration.connect.debezium.shapes import Table, find_differences
from tests.integration.connect.shop import Shop, run, started_shop

from headrace_connect.testing.memory import MemoryLog

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
KEPT = json.loads(Path(__file__).with_name("debezium.json").read_text())["records"]
CONVERTERS = {f"{side}.converter.schemas.enable": "true" for side in ("key", "value")}


def capture(shop: Shop, variant: str) -> dict[str, Any]:
    shop.do(*TABLES, "create publication headrace_shop for all tables")
    named = {
        key.replace(".", "_"): {"true": True, "false": False}.get(one, one) for key, one in VARIANTS[variant].items()
    }
    made, log = shop.settings(PREFIX, "public.*", snapshot_mode="no_data", **named), MemoryLog()
    converters = {"key.converter": "json", "value.converter": "json", **CONVERTERS}
    asyncio.run(run(made, log, converters=converters))  # the slot is made
    shop.do(*changes_of(variant))
    asyncio.run(run(made, log, converters=converters))
    found: dict[str, Table] = {}
    for topic, records in log.records.items():
        table = found.setdefault(topic.rpartition(".")[2], Table())
        for one in records:
            headers = {pair["key"]: json.loads(pair["value"]) for pair in one["headers"] or ()}
            table.add(one["key"], one["value"], headers)
    return {name: table.shown for name, table in found.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_records_are_debeziums(variant: str) -> None:
    with started_shop() as shop:
        ours = capture(shop, variant)
    theirs = KEPT[variant]
    counts = [{name: len(table["records"]) for name, table in side.items()} for side in (theirs, ours)]
    assert {name: counts[0][name] - counts[1][name] for name in counts[0]} == {
        name: int(name == "keyless" and "tombstones.on.delete" not in VARIANTS[variant]) for name in counts[0]
    }
    found = {line.partition(":")[0]: line for line in find_differences(theirs, ours)}
    unknown = [line for path, line in found.items() if not any(one.matches(variant, path) for one in DIFFERENCES)]
    assert not unknown, "\n".join(unknown)
    idle = [
        one.what for one in DIFFERENCES if variant in one.variants and not any(one.matches(variant, p) for p in found)
    ]
    assert not idle, f"these do not differ: {idle}"

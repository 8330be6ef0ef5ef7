"""Rows as they are in a topic."""

from __future__ import annotations

import json
from typing import Any

from headrace_connect.core.dead_letters import Origin
from headrace_connect.plugin import Chunk, Values
from headrace_connect.runtime.converting import ChunkPipeline, Converting


def written(rows: Values) -> list[Any]:
    """As the default converter writes them."""
    converted = ChunkPipeline(Converting.of({}), Origin("c", 0, "p", "t")).apply(Chunk(rows, {}))
    assert converted.lost == []
    texts = [value for out in converted.outgoing for value in out.table.column("value").to_pylist()]
    return [None if text is None else json.loads(text) for text in texts]

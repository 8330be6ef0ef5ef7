"""How batches are put into requests: none is larger than what brokers take unless they are told otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace._core.lane import LaneRules
from headrace._core.producing import BUNDLE_BYTES_MAX, ProducerCore, SendBatches
from headrace_common.core.batch import Codec


def test_batches_beyond_what_brokers_take_go_in_another_request() -> None:
    core = ProducerCore(LaneRules(False, 1, 0, 1_000, 1_000, 1, 1, Codec.NONE), request_bytes=64 << 20)
    batches: list[Any] = [SimpleNamespace(encoded=bytes(size << 20)) for size in (6, 6, 6, 20, 1, 1)]
    requests = [e for e in core._requests(1, batches) if isinstance(e, SendBatches)]
    sizes = [[len(batch.encoded or b"") >> 20 for batch in request.batches] for request in requests]
    assert sizes == [[6, 6], [6], [20], [1, 1]]
    assert BUNDLE_BYTES_MAX == 16 << 20

"""What is prepared is asked for again until all coordinators have said it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.errors import CoordinatorNotAvailable
from headrace_common.runtime.clock import SystemClock
from headrace_connect.runtime.adapters.prepared import SdkPrepared

PREPARED = SimpleNamespace(transactional_id="a", token=b"token")


class Admin:
    """Misses a shard so often."""

    def __init__(self, misses: int) -> None:
        self._misses = misses

    async def list_prepared_transactions(self) -> Any:
        self._misses -= 1
        if self._misses >= 0:
            return SimpleNamespace(transactions=(), missing=("shard 3",))
        return SimpleNamespace(transactions=(PREPARED, SimpleNamespace(transactional_id="b", token=None)), missing=())


async def test_a_list_that_is_not_complete_is_none() -> None:
    patient = SdkPrepared(Admin(2), SystemClock(), 60_000)  # type: ignore[arg-type]
    assert await patient.find() == [("a", b"token")]
    with pytest.raises(CoordinatorNotAvailable, match="shard 3"):
        await SdkPrepared(Admin(2), SystemClock(), 0).find()  # type: ignore[arg-type]

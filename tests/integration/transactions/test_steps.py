"""
Transactions hurt at every named step: afterwards each input is in the outputs once, and nothing hangs.

Some cases run always; TRANSACTION_STEPS=all runs each point with each process killed there (``make
chaos-transactions``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from .steps import ALL, Case, Field, field

SOME = [
    Case("txn.enrol.after"),
    Case("txn.marker.append.after"),
    Case("txn.prepare.write.before"),
    Case("txn.end.answer.before"),
    Case("txn.marker.send.before", "leader"),
    Case("txn.complete.write.before", "worker"),
    Case("txn.offsets.write.after", "coordinator"),
    Case("sdk.txn.end.before"),
]
CASES = ALL if os.environ.get("TRANSACTION_STEPS") == "all" else SOME

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Field]:
    with field(tmp_path_factory.mktemp("steps")) as started:
        yield started


@pytest.mark.parametrize("case", CASES, ids=str)
def test_outputs_are_inputs_once_and_nothing_hangs(hurt: Field, case: Case) -> None:
    hurt.hurt(case)

"""What is told of a failure: a traceback only where a program is at fault, or nobody knows who is."""

from __future__ import annotations

import pytest

from headrace.records import TopicPartition
from headrace_common.core.errors import Internal, InvalidConfig, NetworkFailed
from headrace_connect.core.errors import BrokenPlugin, Fault, PartitionTaken, RetriableError, RowsRefused
from headrace_connect.runtime.failing import TaskFailed, trace_of

CAUSE = KeyError("of a driver")


def raised(error: Exception, cause: Exception | None = None) -> Exception:
    """It, as it is when it was raised."""
    with pytest.raises(type(error)):
        raise error from cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        InvalidConfig("table.name: there is no table orders"),
        RetriableError("the database is away"),
        RowsRefused({2: "too large"}),
        PartitionTaken([TopicPartition("orders", 0)]),
        NetworkFailed("no broker answered"),
        TaskFailed(Fault.DATA, "a record cannot be written"),
        TaskFailed(Fault.WORLD, "the group is gone"),
    ],
)
def test_of_what_says_itself_what_is_wrong_there_is_no_traceback(error: Exception) -> None:
    assert trace_of(raised(error)) == ""
    assert trace_of(raised(error, CAUSE)) == ""


@pytest.mark.parametrize("error", [KeyError("id"), OSError("away"), RuntimeError("odd"), Internal("a bug")])
def test_of_others_there_is_one(error: Exception) -> None:
    assert "test_failing.py" in trace_of(raised(error))


def test_of_a_plugin_that_raises_at_import_there_is_one_whoever_says_so() -> None:
    broken = raised(BrokenPlugin("connector.class: mine cannot be imported"), CAUSE)
    told = trace_of(raised(InvalidConfig("the configuration cannot be used"), broken))
    assert "of a driver" in told

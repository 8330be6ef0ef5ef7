"""The tables: how each kind is treated, and what each operation becomes."""

from __future__ import annotations

import pytest

from headrace_common.core.audit.kinds import HOUR_MS, MINUTE_MS, TREATMENTS, EventClass, Kind, WhenFull
from headrace_common.core.audit.operations import NOTHING, WRITTEN_OF
from headrace_common.core.node_rules import WHO_MAY_CALL


@pytest.mark.parametrize(
    ("kind", "event_class", "when_full", "period_ms"),
    [
        (Kind.ACCESS_CHANGED, 3001, WhenFull.REFUSE, None),
        (Kind.ADMINISTERED, 6003, WhenFull.REFUSE_UNLESS_SET, None),
        (Kind.NODE_REGISTERED, 3001, WhenFull.DROP, None),
        (Kind.NODES_COUNTED, 6003, WhenFull.DROP, None),
        (Kind.AUTHENTICATION_FAILED, 3002, WhenFull.DROP, MINUTE_MS),
        (Kind.OPERATION_REFUSED, 6003, WhenFull.DROP, MINUTE_MS),
        (Kind.OPERATION_TOLERATED, 6003, WhenFull.DROP, MINUTE_MS),
        (Kind.NODE_CLAIM_REFUSED, 3002, WhenFull.DROP, MINUTE_MS),
        (Kind.SESSION_BEGUN, 3002, WhenFull.DROP, HOUR_MS),
        (Kind.RECORDS_READ, 6003, WhenFull.DROP, MINUTE_MS),
        (Kind.RECORDS_WRITTEN, 6003, WhenFull.DROP, MINUTE_MS),
        (Kind.JOURNAL_BEGUN, 6003, WhenFull.DROP, None),
        (Kind.EVENTS_DROPPED, 6003, WhenFull.DROP, None),
    ],
)
def test_each_kind_is_treated_so(kind: Kind, event_class: int, when_full: WhenFull, period_ms: int | None) -> None:
    assert TREATMENTS[kind] == (EventClass(event_class), when_full, period_ms)


def test_an_answer_waits_for_changes_alone() -> None:
    assert {kind for kind in Kind if TREATMENTS[kind].before_answer} == {Kind.ACCESS_CHANGED, Kind.ADMINISTERED}
    assert TREATMENTS.keys() == set(Kind)


def test_what_an_answer_waits_for_is_written_each_time() -> None:
    assert not [kind for kind, one in TREATMENTS.items() if one.before_answer and one.period_ms is not None]


def test_every_operation_of_every_service_has_its_row() -> None:
    assert WRITTEN_OF.keys() == WHO_MAY_CALL.keys()


def test_whoever_looks_leaves_no_event_and_whoever_changes_does() -> None:
    looks = ("Describe", "List", "Explain", "Metadata", "Find", "WhoAmI", "Fetch")
    written = {operation for operation, kind in WRITTEN_OF.items() if kind is not NOTHING}
    assert {one for one in written if one.partition("/")[2].startswith(looks)} == {"Broker/Fetch"}
    changes = ("Alter", "Delete", "Create", "Elect", "Drain", "Adopt", "Increment", "Unregister")
    behind = {one for one in WHO_MAY_CALL if not one.startswith("Admin/") and one.partition("/")[2].startswith(changes)}
    assert behind - written == {"Controller/AlterPartitions"}, "a broker's own"
    access = {operation for operation, kind in WRITTEN_OF.items() if kind is Kind.ACCESS_CHANGED}
    assert access == {
        "Controller/AlterAccess",
        "Controller/AlterQuotas",
        "Controller/CreateKey",
        "Controller/DeleteKeys",
        "Controller/CreateUser",
        "Controller/ChangePassword",
        "Controller/DeleteUser",
    }

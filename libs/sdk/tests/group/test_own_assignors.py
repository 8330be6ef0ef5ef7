"""What an assignor of the application may give, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._core.own_assignors import check_shares
from headrace.errors import Rejected
from headrace_common.core.assignors import MemberSubscription
from headrace_common.core.ids import TopicPartition

MEMBERS = {"a": MemberSubscription(["t", "u"]), "b": MemberSubscription(["t"])}
COUNTS = {"t": 3, "u": 1}


def test_every_member_has_a_share_and_partitions_may_be_left_out() -> None:
    given = {"a": {"t": [2, 0], "u": range(1)}}
    assert check_shares("own", given, MEMBERS, COUNTS) == {
        "a": {TopicPartition("t", 0), TopicPartition("t", 2), TopicPartition("u", 0)},
        "b": set(),
    }


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"a": {"t": [0, 1]}, "b": {"t": [1]}}, "gave t-1 to 'a' and to 'b'; it has one owner"),
        ({"a": {"t": [3]}}, "gave 't' 3 to 'a'; there is no such partition"),
        ({"a": {"t": [-1]}}, "there is no such partition"),
        ({"a": {"t": ["0"]}}, "gave 't' '0' to 'a'; there is no such partition"),
        ({"a": {"t": [True]}}, "there is no such partition"),
        ({"a": {"nobody": [0]}}, "gave 'nobody' 0 to 'a'; there is no such partition"),
        ({"b": {"u": [0]}}, "gave u-0 to 'b', who does not subscribe to 'u'"),
        ({"ghost": {"t": [0]}}, "gave partitions to 'ghost', who is no member"),
        (None, "gave no member id -> topic -> partitions, but NoneType"),
        ({"a": [("t", 0)]}, "gave no member id -> topic -> partitions, but dict"),
        ({"a": {"t": 0}}, "gave no member id -> topic -> partitions, but dict"),
    ],
)
def test_what_cannot_be_sent_to_the_group_is_refused(given: Any, text: str) -> None:
    with pytest.raises(Rejected) as raised:
        check_shares("own", given, MEMBERS, COUNTS)
    assert text in str(raised.value)
    assert "'own'" in str(raised.value)

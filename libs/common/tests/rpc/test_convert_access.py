"""Changes of access travel whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from libs.common.tests.core.access.test_rows import FILE_KEY, KEY
from libs.common.tests.kit.access import ALICE, EVERY_GRANT, GRANTEES, OWN, STAFF, accesses

from headrace_common.core.access.changes import Block, Change, Put, Remove, Rule
from headrace_common.core.errors import HeadraceError
from headrace_common.rpc.convert_access import change_from_proto, change_to_proto, key_to_proto
from headrace_proto.v1 import access_pb2 as pb

bindings = accesses.flatmap(
    lambda access: st.sampled_from([one for some in access.bindings.values() for one in some] or [Block(ALICE)])
)
items = st.one_of(
    st.builds(Rule, st.sampled_from(GRANTEES), st.sampled_from(EVERY_GRANT)),
    bindings,
    st.sampled_from([OWN, Block(ALICE), Block(STAFF)]),
)


@given(st.builds(Put, items) | st.builds(Remove, items, st.booleans()))
def test_a_change_travels_whole(change: Change) -> None:
    wire = change_to_proto(change).SerializeToString()
    assert change_from_proto(pb.AccessChange.FromString(wire)) == change


@pytest.mark.parametrize(
    ("message", "says"),
    [
        (pb.AccessChange(), "names none"),
        (pb.AccessChange(block="alice"), "names no principal"),
        (pb.AccessChange(rule=pb.AccessRule(principal="User:a")), "no type of resource"),
        (
            pb.AccessChange(
                rule=pb.AccessRule(
                    principal="User:a", grant=pb.Grant(operations=["FLY"], type="TOPIC", pattern="a", deny=True)
                )
            ),
            "no operation 'FLY'",
        ),
        (
            pb.AccessChange(
                rule=pb.AccessRule(
                    principal="User:a", grant=pb.Grant(operations=["READ"], type="TOPIC", pattern="a", host="h.example")
                )
            ),
            "no IP address",
        ),
        (pb.AccessChange(role=pb.AccessRole(name="r")), "gives nothing"),
    ],
)
def test_what_is_none_is_refused(message: pb.AccessChange, says: str) -> None:
    with pytest.raises(HeadraceError, match=says):
        change_from_proto(message)


def test_words_are_taken_in_small_letters_too() -> None:
    grant = pb.Grant(operations=["read"], type="topic", pattern="a*")
    change = change_from_proto(pb.AccessChange(rule=pb.AccessRule(principal="User:alice", grant=grant)))
    assert str(change.item.grant) == "allow READ TOPIC a*"  # type: ignore[union-attr]


def test_a_key_is_told_without_its_digest() -> None:
    told = key_to_proto(KEY, configured=False)
    assert (told.id, told.owner, told.created_ms, told.expires_ms) == (KEY.id, "User:alice", 5, 6)
    assert [grant.pattern for grant in told.scope] == ["a"]
    assert KEY.digest.hex() not in str(told)
    assert not key_to_proto(FILE_KEY, configured=True).HasField("expires_ms")

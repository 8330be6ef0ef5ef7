"""Producer ids that show whose they are."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace_broker.core.owned_ids import OWNED_BIT, SERIAL_BITS, is_owned_by, owned_id, serial_of

KEY = b"k" * 32
serials = st.integers(0, 2**48)
owners = st.text(min_size=1, max_size=30).map("User:{}".format)


@given(serials, owners)
def test_an_id_is_its_owners_and_says_its_number(serial: int, owner: str) -> None:
    made = owned_id(serial, owner, KEY)
    assert OWNED_BIT <= made < 2**63, "it is a positive int64, and none of the counter"
    assert is_owned_by(made, owner, KEY)
    assert serial_of(made) == serial % 2**SERIAL_BITS
    assert owned_id(serial_of(made), owner, KEY) == made


@given(serials, owners, owners, st.binary(min_size=32, max_size=32))
def test_it_is_nobody_elses(serial: int, owner: str, other: str, key: bytes) -> None:
    made = owned_id(serial, owner, KEY)
    assert is_owned_by(made, other, KEY) is (other == owner)
    assert is_owned_by(made, owner, key) is (key == KEY)


@given(serials, st.integers(0, 61))
def test_no_bit_of_it_can_be_changed(serial: int, bit: int) -> None:
    assert not is_owned_by(owned_id(serial, "User:a", KEY) ^ 1 << bit, "User:a", KEY)


@given(st.integers(-1, 2**62 - 1))
def test_ids_of_the_counter_are_nobodys(number: int) -> None:
    assert serial_of(number) == number or number < 0
    assert not is_owned_by(number, "User:a", KEY)


def test_the_tags_of_one_owner_spread() -> None:
    tags = {owned_id(serial, "User:a", KEY) >> SERIAL_BITS for serial in range(2_000)}
    assert len(tags) == 2_000
    assert {tag >> 29 & 1 for tag in tags} == {0, 1}, "all bits of the tag are used"
    assert {tag & 1 for tag in tags} == {0, 1}


def test_the_form_of_an_id_stays() -> None:
    """Ids outlive versions: brokers of two of them agree on whose an id is."""
    assert owned_id(7, "User:alice", KEY) == GOLDEN


GOLDEN = 9151805997528907783

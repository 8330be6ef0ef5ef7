"""What the sink says to MariaDB, without one: literals, keys of its catalogue, values that it has no form of."""

from __future__ import annotations

import pyarrow as pa

from headrace_connect.connectors.sql.url import MariadbAddress
from headrace_connect.connectors.sql_sink.mariadb import Mariadb
from headrace_connect.connectors.sql_sink.mariadb_tables import Keys
from headrace_connect.connectors.sql_sink.mariadb_values import tuples_of


def test_literals_end_where_their_value_ends() -> None:
    columns = [pa.array(["it's", "\\'", None]), pa.array([b"\0'", b"", None]), pa.array([True, False, None])]
    assert list(tuples_of(columns)) == [b"('it''s',x'0027',1)", b"('\\''',x'',0)", b"(null,null,null)"]


def test_a_unique_key_of_a_part_of_a_column_is_nobodys() -> None:
    unique = [("i", "a", None), ("i", "b", "3"), ("PRIMARY", "c", None)]
    found = Keys.of(unique, [("a", "utf8mb4_general_ci"), ("b", "utf8mb4_nopad_bin"), ("c", None), ("d", "decimal")])
    assert found.unique == (frozenset(), frozenset({"c"}))
    assert found.inexact == {"a", "d"}


def test_numbers_that_are_none_are_unfit() -> None:
    database = Mariadb(MariadbAddress.parse("mariadb://localhost/shop"), "", "", 1_000)
    assert list(database.find_unfit(pa.array([1.5, float("nan"), None, float("-inf")]))) == [1, 3]
    assert not database.find_unfit(pa.array([1, None]))

"""Settings: names that follow from them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from headrace_common.core.errors import InvalidConfig
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings
from headrace_connect.settings import Secrets, find_problems, read_settings

GIVEN = {
    "name": "shop",
    "topic.prefix": "shop",
    "database.hostname": "db",
    "database.dbname": "shop",
    "database.user": "headrace",
    "table.include.list": "public[.]orders,PUBLIC.cust.*",
    "table.exclude.list": "public.customers_old",
}


def read(**more: str) -> SourceSettings:
    given: Mapping[str, str] = GIVEN | {key.replace("_", "."): value for key, value in more.items()}
    return read_settings(SourceSettings, given, Secrets())


def test_which_tables() -> None:
    settings = read()
    names = ("orders", "orders2", "customers", "customers_old")
    assert [settings.captures("public", name) for name in names] == [True, False, True, False]
    assert settings.reads_rows("public", "orders")
    assert not read(snapshot_mode="no_data").reads_rows("public", "orders")
    assert not read(snapshot_include_collection_list="public.customers").reads_rows("public", "orders")


def test_names() -> None:
    assert (read().slot, read().publication) == ("headrace_shop", "headrace_shop")
    names = [read(topic_prefix=prefix).slot for prefix in ("a.b", "a_b", "a-b", "A_b", "x" * 100)]
    assert len(set(names)) == len(names), "each prefix has its own"
    assert all(len(name) <= 63 for name in names)
    assert read(slot_name="mine").slot == "mine"
    assert read().topic_of("public", "Straße 1") == "shop.public.Stra_e_1"
    with pytest.raises(ValueError, match="would have 262 characters"):
        read().topic_of("public", "x" * 250)


def test_a_form_of_records() -> None:
    form = read(value_form="flat", value_form_fields="op,lsn").form()
    assert (form.form, form.flat_fields, form.truncates) == ("flat", ("op", "lsn"), False)
    assert read(database_sslrootcert="system", database_sslkey="/etc/key").database_sslrootcert == "system"
    assert read(decimal_handling_mode="string", time_precision_mode="connect").modes.decimals == "string"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("topic_prefix", "a/b", "topic.prefix has letters"),
        ("slot_name", "Mine", "slot.name has 1 to 63 lower case"),
        ("publication_name", "x" * 64, "publication.name has at most 63 bytes"),
        ("table_include_list", "public.(", "table.include.list: 'public.(' is no regular expression"),
        ("value_form_fields", "xyz", "there is no xyz"),
        ("value_form", "avro", "value.form"),
        ("database_sslkey", "client.key", "database.sslkey is an absolute path"),
        ("database_sslrootcert", "system/ca.pem", "database.sslrootcert is an absolute path"),
        ("spool_directory", "spool", "spool.directory is an absolute path"),
        ("plugin_name", "wal2json", "plugin.name"),
        ("message_topic", "out/${prefix}", "message.topic has letters"),
        ("message_prefix_include_list", "(", "message.prefix.include.list: '(' is no regular expression"),
        ("database_port", "0", "database.port"),
        ("incremental_snapshot_chunk_size", "0", "incremental.snapshot.chunk.size"),
    ],
)
def test_what_is_wrong(key: str, value: str, message: str) -> None:
    with pytest.raises(InvalidConfig) as wrong:
        read(**{key: value})
    assert message in str(wrong.value)


def test_where_messages_go() -> None:
    assert not read().captures_messages("outbox")
    settings = read(message_prefix_include_list="outbox[.].*,audit")
    assert [settings.captures_messages(prefix) for prefix in ("outbox.a", "outbox", "audit", "audits")] == [
        True,
        False,
        True,
        False,
    ]
    assert settings.topic_of_messages("outbox.a") == "shop.message"
    routed = read(message_topic="events.${prefix}")
    assert routed.topic_of_messages("orders made/1") == "events.orders_made_1"
    assert len(routed.topic_of_messages("x" * 300)) == 249


def test_what_is_read_again_has_no_placeholder_where_that_is_an_error() -> None:
    assert read(reselect_unavailable_values="true").modes.placeholder == "__debezium_unavailable_value"
    strict = read(reselect_unavailable_values="true", reselect_error_handling_mode="fail")
    assert strict.modes.placeholder is None
    with pytest.raises(ValueError, match=r"unavailable\.value\.placeholder is empty"):
        replace(strict, unavailable_value_placeholder="")
    assert read(reselect_error_handling_mode="fail").modes.placeholder is not None, "nothing is read"


def test_flat_needs_tombstones_and_a_password_is_a_secret() -> None:
    with pytest.raises(InvalidConfig, match="tombstones"):
        read(value_form="flat", tombstones_on_delete="false")
    (problem,) = find_problems(GIVEN | {"database.password": "x"}, SourceSettings)
    assert problem.key == "database.password"


def test_a_truncation_has_no_row() -> None:
    with pytest.raises(InvalidConfig, match=r"truncate\.handling\.mode=include needs value\.form=debezium"):
        read(truncate_handling_mode="include", value_form="flat")
    assert read(truncate_handling_mode="include").form().truncates

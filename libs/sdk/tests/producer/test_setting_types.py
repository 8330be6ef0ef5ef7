"""Type checkers know the settings that clients take, and no others."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from headrace import consumer_settings, setting_types, settings
from headrace._core.fetch_events import LogDiverged, PositionReset, TopicRecreated
from headrace._core.starts import parse_reset
from headrace.aio._consumer_setup import deserializer_of
from headrace.aio.admin import AdminSettings
from headrace.consumer_settings import Assignor, ConsumerSettings
from headrace.delivery import DeliveredBatch
from headrace.serializers import _KNOWN, Serializer
from headrace.settings import ClientSettings, DecidingSettings, ProducerSettings, read_settings
from headrace_common.core.secret import Secret

IMPORTED_FOR_TYPES = {
    each.__name__: each for each in (Assignor, DeliveredBatch, LogDiverged, PositionReset, Secret, TopicRecreated)
} | {"Serializer": Serializer}

GOOD = """
from typing import Any
import json
from headrace import AdminClient, Consumer, LogWatch, PreparedTransactions, Producer, RangeReader, UnitOwner, aio
from headrace import Record, bulk_partitioner
from headrace.setting_types import ByDuration, ConsumerSettingsDict, ProducerSettingsDict

mine: ProducerSettingsDict = {"acks": "all", "linger_ms": 5, "compression_type": "zstd"}
read: dict[str, Any] = {"linger.ms": 5, "acks": "most"}
group: ConsumerSettingsDict = {"group_id": "billing", "isolation_level": "read_committed"}

@bulk_partitioner
def by_length(topic: str, keys: list[bytes | None], partitions: int) -> list[int]:
    return [len(key or b"") % partitions for key in keys]

class First:
    name = "first"
    def assign(self, members: Any, partitions: Any) -> Any: ...

Producer(**mine)
Producer("a:1", acks=1, max_in_flight=2, value_serializer=json.dumps, on_delivery=print, partitioner=by_length)
Producer({"bootstrap.servers": "a:1", "linger.ms": 5})
Producer("a:1", **read)
aio.Producer("a:1", acks="0", key_serializer="string")
Consumer("t", **group)
Consumer("t", group_id="g", group_protocol="classic", partition_assignment_strategy=["range", First()])
Consumer("t", auto_offset_reset=ByDuration("by_duration:PT1H"), value_deserializer=json.loads)
aio.Consumer("t", **read)
numbers: Consumer[bytes | None, int] = Consumer("t", value_deserializer="int64")
total: int = sum(record.value for record in numbers.poll())
for each in Consumer[str, int]("t", **read):
    each.key.upper()
plain: Record = Consumer("t").poll()[0]
AdminClient("a:1", default_api_timeout_ms=1)
aio.AdminClient("a:1", client_id="me", **read)
LogWatch("a:1", isolation_level="read_committed")
RangeReader("a:1", [], check_crcs=False)
PreparedTransactions("a:1", default_api_timeout_ms=1)
UnitOwner("a:1", "me", **read)
"""

REFUSED = """
from headrace import AdminClient, Consumer, LogWatch, PreparedTransactions, Producer, RangeReader, UnitOwner, aio

Producer(lingerms=5)  # call-arg
Producer(acks="most")  # arg-type
Producer(compression_type="brotli")  # arg-type
Producer(linger_ms="5")  # arg-type
Producer(key_serializer="jsom")  # arg-type
Producer(group_id="g")  # call-arg
aio.Producer(lingerms=5)  # call-arg
aio.Producer(acks="most")  # arg-type
Consumer("t", isolation_level="committed")  # arg-type
Consumer("t", auto_offset_reset="smallest")  # arg-type
Consumer("t", group_protocol="new")  # arg-type
Consumer("t", group_remote_assignor="sticky")  # arg-type
Consumer("t", groupid="g")  # call-arg
aio.Consumer("t", auto_offset_reset="smallest")  # arg-type
aio.Consumer("t", acks="all")  # call-arg
AdminClient(timeout=1)  # call-arg
aio.AdminClient(timeout=1)  # call-arg
LogWatch(group_protocol="classic")  # call-arg
RangeReader(max_poll_records=1)  # call-arg
PreparedTransactions(acks="all")  # call-arg
aio.PreparedTransactions(acks="all")  # call-arg
numbers: Consumer[bytes, int] = Consumer("t")
numbers.poll()[0].value.upper()  # attr-defined
name: str = numbers.read_to_end()[0].value  # assignment
UnitOwner("a:1", "me", acks="all")  # call-arg
aio.UnitOwner("a:1", "me", acks="all")  # call-arg
"""


def types_of(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind, localns=IMPORTED_FOR_TYPES)


def settings_of(kind: type[ClientSettings]) -> dict[str, Any]:
    hints = types_of(kind)
    found = {field.name: hints[field.name] for field in fields(kind)}
    aliases: dict[str, str] = getattr(kind, "ALIASES", {})
    return found | {alias: found[name] for alias, name in aliases.items()}


@pytest.mark.parametrize(
    ("kind", "typed"),
    [
        (ClientSettings, setting_types.ClientSettingsDict),
        (DecidingSettings, setting_types.DecidingSettingsDict),
        (AdminSettings, setting_types.AdminSettingsDict),
        (ProducerSettings, setting_types.ProducerSettingsDict),
        (ConsumerSettings, setting_types.ConsumerSettingsDict),
    ],
    ids=lambda kind: kind.__name__,
)
def test_checkers_and_clients_know_the_same_settings(kind: type[ClientSettings], typed: type[Any]) -> None:
    assert types_of(typed) == settings_of(kind)


def test_checkers_know_what_readers_have_no_use_for() -> None:
    every = types_of(setting_types.ConsumerSettingsDict)
    useless = consumer_settings._OF_CONSUMERS_ONLY
    assert set(types_of(setting_types.ReadingSettingsDict)) == set(every) - useless
    assert set(types_of(setting_types.ConsumerKeywords)) == set(every) - {"group_id"}


@pytest.mark.parametrize("word", get_args(setting_types.Acks))
def test_every_word_of_acks_is_taken(word: Any) -> None:
    assert read_settings(ProducerSettings, {"acks": word}).acks == word


@pytest.mark.parametrize("word", get_args(setting_types.RemoteAssignor))
def test_every_word_of_a_remote_assignor_is_taken(word: str) -> None:
    assert read_settings(ConsumerSettings, {"group_id": "g", "group_remote_assignor": word}).group_remote_assignor


@pytest.mark.parametrize("word", get_args(get_args(setting_types.AutoOffsetReset)[0]))
def test_every_word_of_a_reset_is_taken(word: str) -> None:
    parse_reset(word)


def test_the_names_of_serializers_are_those_that_there_are() -> None:
    assert get_args(setting_types.SerializerName) == tuple(_KNOWN)
    assert all(deserializer_of("value_deserializer", name) for name in get_args(setting_types.DeserializerName))


def test_codecs_are_those_of_the_type() -> None:
    assert get_args(setting_types.CompressionType) == settings.CODECS
    for codec in settings.CODECS:
        read_settings(ProducerSettings, {"compression_type": codec})


def test_a_checker_refuses_what_clients_refuse(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text(GOOD)
    (tmp_path / "refused.py").write_text(REFUSED)
    arguments = ["--strict", "--config-file=", "--cache-dir=/dev/null", "good.py", "refused.py"]
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    expected = {
        ("refused.py", number, line.partition("  # ")[2])
        for number, line in enumerate(REFUSED.splitlines(), 1)
        if "  # " in line
    }
    found = re.findall(r"^([\w.]+):(\d+): error: .* \[([\w-]+)\]$", checked.stdout, re.M)
    assert {(file, int(number), code) for file, number, code in found} == expected, checked.stdout + checked.stderr

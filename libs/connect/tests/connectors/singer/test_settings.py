"""Settings, and the tap's configuration that they make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from libs.connect.tests.connectors.singer.taps import SaidTap, settings, source_of

from headrace_connect.runtime.configuring import find_config_problems

BASE = {"name": "x", "connector.class": "singer", "tap.executable": "tap-csv"}


def test_the_configuration_of_the_tap(tmp_path: Path) -> None:
    file = tmp_path / "tap.json"
    file.write_text(json.dumps({"a": {"b": 1, "c": 2}, "start_date": "2020"}))
    config = {
        "start_date": "2024-01-01T00:00:00Z", "page_size": "100", "flag": "true", "id": '"0012"', "zip": "0012",
        "files": '[{"path": "/data/x.csv"}]', "a.b": "text", "password": "12345", "auth.token": "true",
    }  # fmt: skip
    assert settings(config=config, tap_config_file=str(file)).read_config() == {
        "a": {"b": "text", "c": 2},
        "start_date": "2024-01-01T00:00:00Z",
        "page_size": 100,
        "flag": True,
        "id": "0012",
        "zip": "0012",
        "files": [{"path": "/data/x.csv"}],
        "password": "12345",
        "auth": {"token": "true"},
    }


@pytest.mark.parametrize("text", [None, "[]", "{", "\xff"])
async def test_files_that_cannot_be_used(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "x.json"
    if text is not None:
        file.write_text(text, encoding="latin-1")
    [problem] = await source_of(SaidTap([[]], {"streams": []}), settings(tap_config_file=str(file))).check()
    assert problem.startswith("tap.config.file: ")
    [problem] = await source_of(SaidTap([[]], {}), settings(tap_catalog_file=str(file))).check()
    assert problem.startswith("tap.catalog.file: ")


async def test_a_catalog_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(json.dumps({"streams": [{"tap_stream_id": "orders", "schema": {}}]}))
    of = settings(tap_catalog_file=str(file), stream_include_list=("order",))
    [problem] = await source_of(SaidTap([[]]), of).check()
    assert "is orders meant?" in problem


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"tap_executable": " "}, "tap.executable"),
        ({"tap_executable": "-m"}, "tap.executable"),
        ({"topic_pattern": "all"}, "needs a topic of its own"),
        ({"tap_discover": False, "tap_catalog_file": "/x"}, "instead of discovery"),
        ({"stream_include_list": ("(",)}, "no regular expression"),
        ({"property_exclude_list": ("(",)}, "no regular expression"),
        ({"config": {"a": "1", "a.b": "2"}}, "config.a is no object"),
        ({"config": {"a..b": "2"}}, "empty name"),
    ],
)
def test_settings_that_cannot_work(values: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        settings(**values)


def test_secrets_are_refused_in_plain_and_not_shown() -> None:
    [problem] = find_config_problems({**BASE, "config.api_key": "hunter2"})
    assert problem.key == "config.api_key"
    assert find_config_problems({**BASE, "config.api_key": "${env:KEY}", "metadata.replication-method": "FULL"}) == ()
    assert "hunter2" not in repr(settings(config={"api_key": "hunter2"}))

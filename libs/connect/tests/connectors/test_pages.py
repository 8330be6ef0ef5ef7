"""The pages of the connectors have their settings, as the dataclasses say them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from headrace_connect.connectors.copying.settings import CopySettings
from headrace_connect.connectors.files.settings import SourceSettings
from headrace_connect.connectors.files.sink_settings import SinkSettings as FilesSinkSettings
from headrace_connect.connectors.http.poll_settings import PollSettings
from headrace_connect.connectors.http.settings import SourceSettings as HttpSourceSettings
from headrace_connect.connectors.http.sink_settings import SinkSettings as HttpSinkSettings
from headrace_connect.connectors.kafka_import.settings import ImportSettings
from headrace_connect.connectors.lake_sink.settings import SinkSettings as LakeSinkSettings
from headrace_connect.connectors.postgres_cdc.settings import SourceSettings as PostgresSettings
from headrace_connect.connectors.singer.settings import SourceSettings as SingerSettings
from headrace_connect.connectors.sql_sink.settings import SinkSettings as SqlSinkSettings
from headrace_connect.connectors.sql_source.settings import SourceSettings as SqlSourceSettings
from headrace_connect.runtime.configuring import find_config_problems
from headrace_connect.settings import Definition, describe

PAGES = Path(__file__).parents[4] / "docs" / "connectors"


def row(one: Definition) -> str:
    default = "required" if one.required else f"`{one.default}`" if one.default else ""
    choices = f" One of {', '.join(f'`{choice}`' for choice in one.choices)}." if one.choices else ""
    text = f"{one.documentation.replace('``', '`')}{choices}"
    return f"| `{one.key}` | {default} | {text} |".replace("|  |", "| |")


@pytest.mark.parametrize("page", sorted(path.name for path in PAGES.glob("*.md")))
def test_the_quick_start_can_be_used(page: str) -> None:
    examples = [yaml.safe_load(one) for one in re.findall(r"```yaml\n(.*?)```", (PAGES / page).read_text(), re.S)]
    configurations = [one for one in examples if "connector.class" in one]
    assert configurations
    for one in configurations:
        given = {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in one.items()}
        assert find_config_problems(given) == ()


@pytest.mark.parametrize(
    ("page", "cls"),
    [
        ("files.md", SourceSettings),
        ("files.md", FilesSinkSettings),
        ("http.md", HttpSourceSettings),
        ("http.md", PollSettings),
        ("http.md", HttpSinkSettings),
        ("sql-sink.md", SqlSinkSettings),
        ("lake-sink.md", LakeSinkSettings),
        ("mirror.md", CopySettings),
        ("kafka-import.md", ImportSettings),
        ("sql-source.md", SqlSourceSettings),
        ("postgres-cdc.md", PostgresSettings),
        ("singer.md", SingerSettings),
    ],
)
def test_each_setting_has_its_row(page: str, cls: type) -> None:
    table = "\n".join(row(one) for one in describe(cls))
    assert table in (PAGES / page).read_text(), f"put into {page}:\n{table}"

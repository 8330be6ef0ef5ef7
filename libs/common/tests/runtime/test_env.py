"""Settings from environment and command line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal

import pytest

from headrace_common.core.bounds import setting
from headrace_common.core.errors import InvalidConfig
from headrace_common.core.ids import Endpoint, NodeId
from headrace_common.runtime.env import HelpWanted, inline, load_settings, settings_or_exit


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Storage:
    """Where logs are."""

    data_dir: Path
    """The data directory."""
    flush: Literal["group", "always", "os"] = "group"
    """When an append is synced."""


@dataclass(frozen=True)
class Net:
    listen: Endpoint = Endpoint("127.0.0.1", 1)
    """Address."""
    advertise_host: str | None = None
    """Host."""


def _other_net() -> Net:
    return Net(listen=Endpoint("127.0.0.1", 9490))


@dataclass(frozen=True)
class Settings:
    """A service for a test."""

    storage: Storage
    net: Net = inline(_other_net)
    node_id: NodeId = NodeId(1)
    """Which node
    this is."""
    ratio: float = 0.5
    """A part."""
    eager: bool = False
    """Whether."""
    peers: tuple[Endpoint, ...] = ()
    """Others."""
    tags: tuple[str, ...] = ("a", "b")
    """Words."""
    colour: Colour = Colour.RED
    """A colour."""

    def __post_init__(self) -> None:
        if self.ratio > 1:
            raise ValueError("ratio takes 0 to 1")


def load(*argv: str, **env: str) -> Settings:
    return load_settings(Settings, service="demo", argv=["--storage-data-dir", "d", *argv], env=env)


def test_defaults() -> None:
    assert load() == Settings(Storage(Path("d")))
    assert load().net.listen.port == 9490


def test_every_type_from_the_command_line() -> None:
    words = "--listen [::1]:5 --advertise-host h --node-id 7 --ratio 0.25 --eager --peers a:1,b:2 --tags= --colour blue"
    assert load(*words.split(), "--storage-flush=os") == Settings(
        Storage(Path("d"), "os"),
        Net(Endpoint("::1", 5), "h"),
        NodeId(7),
        0.25,
        True,
        (Endpoint("a", 1), Endpoint("b", 2)),
        (),
        Colour.BLUE,
    )


def test_the_command_line_wins_over_the_environment() -> None:
    env = {"HEADRACE_DEMO_NODE_ID": "3", "HEADRACE_DEMO_STORAGE_FLUSH": "always", "HEADRACE_DEMO_EAGER": "yes"}
    settings = load("--node-id", "4", **env)
    assert (settings.node_id, settings.storage.flush, settings.eager) == (4, "always", True)


def test_an_empty_optional_is_absent_and_negative_numbers_are_values() -> None:
    assert load("--advertise-host", "").net.advertise_host is None
    assert load("--ratio", "-0.5").ratio == -0.5
    assert load("--eager", "false").eager is False


def test_variables_of_others_are_not_ours() -> None:
    assert load(HEADRACE_DEMO_PORT="tcp://10.0.0.1:80", HEADRACE_OTHER_NODE_ID="9").node_id == 1


def test_everything_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidConfig) as raised:
        load_settings(
            Settings,
            service="demo",
            argv=["--nope", "1", "--listen", "x", "--node-id", "one", "--node-id", "2", "stray", "--colour"],
            env={"HEADRACE_DEMO_RATIO": "half", "HEADRACE_DEMO_STORAGE_FLUSH": "never", "HEADRACE_DEMO_EAGER": "?"},
        )
    text = str(raised.value)
    for part in (
        "--nope is not a setting",
        "--listen: 'x' is not an address",
        "--node-id is given twice",
        "stray is not a setting",
        "--colour takes a value",
        "HEADRACE_DEMO_RATIO: takes a number",
        "HEADRACE_DEMO_STORAGE_FLUSH: takes group, always, os",
        "HEADRACE_DEMO_EAGER: takes true or false",
        "--storage-data-dir is missing",
    ):
        assert part in text


def test_rules_over_fields_are_told_too() -> None:
    with pytest.raises(InvalidConfig, match="ratio takes 0 to 1"):
        load("--ratio", "2")


def test_help_says_every_setting_with_its_docstring() -> None:
    with pytest.raises(HelpWanted) as wanted:
        load("--help")
    text = str(wanted.value)
    assert text.startswith("A service for a test.")
    assert "--storage-data-dir  (HEADRACE_DEMO_STORAGE_DATA_DIR, path, must be given)" in text
    assert "--listen  (HEADRACE_DEMO_LISTEN, host:port, default 127.0.0.1:9490)" in text
    assert "--storage-flush  (HEADRACE_DEMO_STORAGE_FLUSH, group|always|os, default group)" in text
    assert "--colour  (HEADRACE_DEMO_COLOUR, red|blue, default red)" in text
    assert "--tags  (HEADRACE_DEMO_TAGS, list of str, with commas, default a,b)" in text
    assert "      Which node\n      this is." in text


def test_settings_can_be_checked_and_listed_without_a_service() -> None:
    given = ("--node-id", "3")
    with pytest.raises(HelpWanted):
        load(*given, "--check-settings")
    with pytest.raises(InvalidConfig, match="stray is not a setting"):
        load(*given, "--check-settings", "--stray", "1")
    with pytest.raises(HelpWanted) as wanted:
        load("--settings-json")
    rows = {row["name"]: row for row in json.loads(str(wanted.value))}
    assert rows["storage_flush"]["type"] == "group|always|os"
    assert rows["storage_flush"]["default"] == "group"
    assert rows["node_id"]["documentation"] == "Which node this is."


def test_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        settings_or_exit(Settings, service="demo", argv=["--help"], env={})
    assert left.value.code == 0
    assert "--ratio" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        settings_or_exit(Settings, service="demo", argv=[], env={})
    assert left.value.code == 2
    assert "--storage-data-dir is missing" in capsys.readouterr().err


@dataclass(frozen=True)
class Bounded:
    """A service with a bound."""

    queue_max: int = setting(5, low=1, high=9)
    """How much waits."""


def test_help_and_data_tell_what_a_setting_takes() -> None:
    with pytest.raises(HelpWanted, match=r"How much waits\.\n +Takes 1 to 9\."):
        load_settings(Bounded, service="test", argv=["--help"], env={})
    with pytest.raises(HelpWanted) as wanted:
        load_settings(Bounded, service="test", argv=["--settings-json"], env={})
    (row,) = json.loads(str(wanted.value))
    assert row["documentation"] == "How much waits. Takes 1 to 9."

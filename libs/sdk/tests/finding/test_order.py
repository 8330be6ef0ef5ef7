"""Which cluster is meant: what is asked first, and what a file or a profile that is wrong does."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from headrace import finding
from headrace.errors import InconsistentClusterId, InvalidConfig
from headrace.finding import (
    ClusterAddress,
    bootstrap_addresses,
    chosen_profile,
    find_cluster,
    local_cluster,
    secured,
)
from headrace_common.runtime import private_files

CONFIG = """
profile = "chosen"
[chosen]
bootstrap = "chosen:1"
[two]
bootstrap = "two:2, two:3"
output = "json"
[print]
output = "yaml"
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(CONFIG)
    return path


def local_file(directory: Path, **fields: object) -> Path:
    (directory / ".headrace").mkdir(exist_ok=True)
    file = directory / ".headrace" / "cluster.json"
    written = {"bootstrap_servers": ["local:1", "local:2"], "data_dir": os.path.realpath(file.parent), **fields}
    file.write_text(json.dumps({name: value for name, value in written.items() if value is not None}))
    return file


def find(here: Path, bootstrap: str | None = None, profile: str | None = None, **env: str) -> ClusterAddress:
    return find_cluster(bootstrap, profile, {"HOME": str(here / "home"), **env}, lambda: here)


def test_the_first_that_is_there_counts(tmp_path: Path, config: Path) -> None:
    local_file(tmp_path, cluster_id="c")
    env = {"HEADRACE_CONFIG": str(config), "HEADRACE_PROFILE": "two", "HEADRACE_BOOTSTRAP": "env:1"}
    assert list(find(tmp_path, "flag:1", "two", **env)) == ["flag:1"]
    assert list(find(tmp_path, None, "chosen", **env)) == ["chosen:1"]
    assert list(find(tmp_path, **env)) == ["env:1"]
    del env["HEADRACE_BOOTSTRAP"]
    assert list(find(tmp_path, **env)) == ["two:2", "two:3"]
    del env["HEADRACE_PROFILE"]
    assert list(find(tmp_path, **env)) == ["chosen:1"]
    found = find(tmp_path)
    assert (list(found), found.cluster_id) == (["local:1", "local:2"], "c")
    assert list(find(tmp_path / "elsewhere")) == ["127.0.0.1:9292"]


def test_a_profile_that_names_no_cluster_still_says_how_to_print(tmp_path: Path, config: Path) -> None:
    found = find(tmp_path, None, "print", HEADRACE_CONFIG=str(config), HEADRACE_BOOTSTRAP="env:1")
    assert (list(found), found.output) == (["env:1"], "yaml")


def test_a_directory_that_was_removed_has_no_local_cluster(tmp_path: Path) -> None:
    def gone() -> Path:
        raise FileNotFoundError

    assert list(find_cluster(None, None, {"HOME": str(tmp_path)}, gone)) == ["127.0.0.1:9292"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"bootstrap_servers": "a:1"}',
        '{"bootstrap_servers": [1]}',
        '{"bootstrap_servers": [], "x": 1}',
        '{"bootstrap_servers": ["a:1"], "cluster_id": 1}',
        '{"bootstrap_servers": ["a:1"], "cluster_id": "c", "data_dir": 1}',
    ],
)
def test_a_file_that_is_no_cluster_file_is_named_and_nobody_else_is_asked(tmp_path: Path, text: str) -> None:
    file = local_file(tmp_path)
    file.write_text(text)
    with pytest.raises(InvalidConfig) as refused:
        find(tmp_path)
    for part in (str(file), "`headrace up`", "HEADRACE_BOOTSTRAP"):
        assert part in str(refused.value)
    assert list(find(tmp_path, "flag:1")) == ["flag:1"]


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    file = local_file(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidConfig, match=r"cluster\.json cannot be read"):
        find(tmp_path)


def test_only_where_there_is_no_directory_the_default_is_asked(tmp_path: Path) -> None:
    assert local_cluster(tmp_path / ".headrace") is None
    assert list(find(tmp_path)) == ["127.0.0.1:9292"]
    (tmp_path / ".headrace").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidConfig, match=r"cluster\.json is not; `headrace up`"):
        find(tmp_path)
    (tmp_path / ".headrace").unlink()
    (tmp_path / ".headrace").write_text("")
    with pytest.raises(InvalidConfig, match=r"\.headrace is a file, .*move it away"):
        find(tmp_path)
    (tmp_path / ".headrace").unlink()
    (tmp_path / ".headrace").mkdir()
    with pytest.raises(InvalidConfig, match=r"cluster\.json is not; `headrace up`"):
        find(tmp_path)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"bootstrap_servers": [], "cluster_id": "c"}, "has no address of a broker"),
        ({}, "has no cluster id"),
        ({"cluster_id": "c", "data_dir": None}, "an older version wrote it"),
    ],
)
def test_a_file_that_does_not_tell_whose_addresses_it_has_leads_nobody(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    local_file(tmp_path, **fields)
    with pytest.raises(InvalidConfig, match=f"{said}.*`headrace up`"):
        find(tmp_path)


def test_a_copied_directory_leads_nobody_to_the_cluster_of_the_original(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    local_file(tmp_path / "one", cluster_id="c")
    shutil.copytree(tmp_path / "one" / ".headrace", tmp_path / "two" / ".headrace")
    assert list(find(tmp_path / "one")) == ["local:1", "local:2"]
    original = re.escape(str(tmp_path / "one" / ".headrace"))
    with pytest.raises(InvalidConfig, match=f"copied or moved from {original}; `headrace up`"):
        find(tmp_path / "two")


@pytest.mark.parametrize("planted", [".headrace", ".headrace/cluster.json"])
def test_nobody_is_led_by_what_another_user_has_put_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: str
) -> None:
    local_file(tmp_path, cluster_id="c")
    owners = {tmp_path / planted: 10_001}
    monkeypatch.setattr("headrace_common.runtime.private_files._owner_of", lambda path, _: owners.get(path, 0))
    said = re.escape(f"{tmp_path / planted} belongs to another user (uid 10001)")
    with pytest.raises(InvalidConfig, match=f"^{said}.*`headrace up`"):
        find(tmp_path)


def test_a_directory_of_another_user_that_is_closed_to_us_is_named_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_file(tmp_path, cluster_id="c")
    monkeypatch.setattr("headrace_common.runtime.private_files._owner_of", lambda path, _: 10_001)

    def closed(path: Path, *_: object, **__: object) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("headrace.finding.os.open", closed)
    with pytest.raises(InvalidConfig, match=r"\.headrace belongs to another user \(uid 10001\)"):
        find(tmp_path)


def test_what_is_swapped_between_the_look_and_the_reading_leads_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local_file(tmp_path, cluster_id="mine")
    (tmp_path / "theirs").mkdir()
    local_file(tmp_path / "theirs", cluster_id="planted", data_dir=os.path.realpath(tmp_path / ".headrace"))
    looked = private_files.foreign_owner

    def look_then_swap(path: Path, opened: int | None = None) -> int | None:
        owner = looked(path, opened)
        if path == tmp_path / ".headrace" and not (tmp_path / "ours").exists():
            path.rename(tmp_path / "ours")
            (tmp_path / "theirs" / ".headrace").rename(path)
        return owner

    monkeypatch.setattr(finding, "foreign_owner", look_then_swap)
    assert find(tmp_path).cluster_id == "mine"


def test_a_link_to_the_directory_is_the_directory(tmp_path: Path) -> None:
    local_file(tmp_path, cluster_id="c")
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / ".headrace").symlink_to(tmp_path / ".headrace")
    assert list(find(tmp_path / "link")) == ["local:1", "local:2"]


def test_what_another_cluster_answers_is_refused_until_the_file_names_that_one(tmp_path: Path) -> None:
    file = local_file(tmp_path, cluster_id="mine")
    found = find(tmp_path)
    found.check("mine", "local:1")
    with pytest.raises(InconsistentClusterId) as refused:
        found.check("other", "local:1")
    for part in ("local:1 is a broker of cluster 'other'", str(file), "'mine'", "`headrace up`", "HEADRACE_BOOTSTRAP="):
        assert part in str(refused.value)
    local_file(tmp_path, cluster_id="other")
    found.check("other", "local:1")


def test_what_is_damaged_meanwhile_allows_no_other_answer(tmp_path: Path) -> None:
    file = local_file(tmp_path, cluster_id="mine")
    found = find(tmp_path)
    file.write_text("{")
    with pytest.raises(InconsistentClusterId):
        found.check("other", "local:1")


def test_without_an_id_nothing_is_contradicted(tmp_path: Path) -> None:
    find(tmp_path, "flag:1").check("any", "flag:1")


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda here: find(here, None, "three"), "there is no profile 'three'"),
        (lambda here: find(here, HEADRACE_BOOTSTRAP="nonsense"), "HEADRACE_BOOTSTRAP: 'nonsense' is not an address"),
        (lambda here: find(here, "http://127.0.0.1:9292"), "--bootstrap: 'http://127.0.0.1:9292' is not an address"),
        (lambda here: find(here, "a:0"), "--bootstrap: 'a:0' has port 0"),
        (lambda _: bootstrap_addresses([]), "bootstrap_servers is empty"),
    ],
)
def test_what_is_wrong_is_named_with_who_said_it(tmp_path: Path, call: Callable[[Path], object], said: str) -> None:
    with pytest.raises(InvalidConfig, match=said):
        call(tmp_path)


@pytest.mark.parametrize("text", ["[", "profile = 3", "profile = ''"])
def test_a_config_file_that_cannot_be_read_is_named(config: Path, text: str) -> None:
    config.write_text(text)
    if text.endswith("''"):
        assert chosen_profile(config) is None
        return
    with pytest.raises(InvalidConfig, match=r"config\.toml"):
        chosen_profile(config)


def test_what_was_found_is_taken_as_it_is() -> None:
    found = ClusterAddress(("a:1", "b:2"), cluster_id="c")
    assert bootstrap_addresses(found) is found
    assert str(found) == "a:1,b:2"


def test_how_a_cluster_is_spoken_to_is_known_with_its_address(tmp_path: Path, config: Path) -> None:
    config.write_text(CONFIG.replace('bootstrap = "chosen:1"', 'bootstrap = "chosen:1"\nca = "chosen.pem"'))
    env = {"HEADRACE_CONFIG": str(config), "HEADRACE_CA": "env.pem"}
    assert find(tmp_path, **env).ca == "chosen.pem"
    assert find(tmp_path, "arg:1", **env).ca == "env.pem"
    assert find(tmp_path, profile="two", **env).ca == "env.pem"
    assert find(tmp_path, HEADRACE_BOOTSTRAP="env:1", **env).ca == "env.pem"
    assert find(tmp_path, HEADRACE_CA="env.pem").ca == "env.pem"
    local_file(tmp_path, cluster_id="c")
    assert find(tmp_path, HEADRACE_CA="env.pem").ca is None, "its own file says that it speaks plain text"
    local_file(tmp_path, cluster_id="c", ca="local.pem")
    assert find(tmp_path, HEADRACE_CA="env.pem").ca == "local.pem"
    local_file(tmp_path, cluster_id="c", ca=5)
    with pytest.raises(InvalidConfig, match="is damaged"):
        find(tmp_path)


def test_settings_decide_how_it_is_spoken_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_CA", "env.pem")
    found = bootstrap_addresses("a:1")
    assert secured(found, None, None).ca == "env.pem"
    assert secured(found, "SSL", None).ca == "env.pem"
    assert secured(found, None, "mine.pem").ca == "mine.pem"
    assert secured(found, "PLAINTEXT", None).ca is None
    with pytest.raises(InvalidConfig, match="needs TLS"):
        secured(found, "PLAINTEXT", "mine.pem")
    monkeypatch.delenv("HEADRACE_CA")
    with pytest.raises(InvalidConfig, match=r"SSL needs ssl_ca_location or HEADRACE_CA"):
        secured(bootstrap_addresses("a:1"), "SSL", None)
    assert secured(bootstrap_addresses("a:1"), None, None).ca is None

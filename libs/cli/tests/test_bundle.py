"""``headrace debug bundle``: what is in it, what is cut out, and that a broken cluster has one too."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from headrace.testing import TestCluster
from headrace_cli.app import app
from headrace_cli.bundle import Bundle, text_without_secrets, without_secrets
from headrace_cli.bundle_parts import LOG_BYTES, end_of
from headrace_common.core.errors import NetworkFailed

runner = CliRunner()


def read(file: Path) -> dict[str, str]:
    """The parts by their names below the root."""
    with tarfile.open(file) as tar:
        return {m.name.partition("/")[2]: tar.extractfile(m).read().decode() for m in tar.getmembers()}  # type: ignore[union-attr]


def test_a_cluster_that_is_not_there_has_a_bundle_that_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = runner.invoke(app, ["debug", "bundle", "-b", "127.0.0.1:1", "--to", "b.tar.gz"])
    assert result.exit_code == 0, result.output
    assert "cluster/status.json is missing" in result.stderr
    parts = read(tmp_path / "b.tar.gz")
    assert set(parts) == {"manifest.json", "about.json"}
    assert "Connection refused" in json.loads(parts["manifest.json"])["missing"]["cluster/status.json"]
    assert json.loads(parts["about.json"])["packages"]["headrace"]
    assert (tmp_path / "b.tar.gz").stat().st_mode & 0o077 == 0
    piped = runner.invoke(app, ["debug", "bundle", "-b", "127.0.0.1:1", "--to", "-"])
    (tmp_path / "piped.tar.gz").write_bytes(piped.stdout_bytes)
    assert set(read(tmp_path / "piped.tar.gz")) == set(parts)
    again = runner.invoke(app, ["debug", "bundle", "-b", "127.0.0.1:1", "--to", "b.tar.gz"])
    assert again.exit_code == 2
    assert "is there already" in again.stderr


def test_a_directory_that_is_damaged_or_copied_has_a_bundle_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HEADRACE_BOOTSTRAP", "HEADRACE_PROFILE", "HEADRACE_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".headrace" / "logs").mkdir(parents=True)
    (tmp_path / ".headrace" / "logs" / "broker-1.log").write_text("a line\n")
    for name in ("cluster.json", "supervisor.json"):
        (tmp_path / ".headrace" / name).write_text("{")
    result = runner.invoke(app, ["debug", "bundle", "--to", "b.tar.gz"])
    assert result.exit_code == 0, result.output
    parts = read(tmp_path / "b.tar.gz")
    assert set(parts) == {"manifest.json", "about.json", "local/logs/broker-1.log"}
    missing = json.loads(parts["manifest.json"])["missing"]
    assert "cluster.json is damaged" in missing["cluster/status.json"]
    assert "supervisor.json is damaged" in missing["local/supervisor.json"]
    asked = runner.invoke(app, ["debug", "dump-log"])
    assert asked.exit_code == 2
    assert "cluster.json is damaged" in asked.stderr
    read_offline = runner.invoke(app, ["debug", "dump-log", "--data-dir", "nowhere"])
    assert "cluster.json is damaged" not in read_offline.stderr


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("password=hunter2 user=me", "password=*** user=me"),
        ('{"node_token": "abc.def", "n": 1}', '{"node_token": "***", "n": 1}'),
        ("Authorization: Bearer abc", "Authorization: ***"),
        ("--api-key: xyz", "--api-key: ***"),
        ("sasl.jaas.config = line;", "sasl.jaas.config = ***;"),
        ("a\n-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----\nb", "a\n***\nb"),
        ("-----BEGIN EC PRIVATE KEY-----\nMIIE", "***"),
        ("it has shown hrn_" + "a" * 43 + " twice", "it has shown hrn_*** twice"),
        ("the broker is ready", "the broker is ready"),
    ],
)
def test_secrets_are_cut_out_of_texts(text: str, left: str) -> None:
    assert text_without_secrets(text) == left


def test_secrets_are_cut_out_of_data_at_any_depth() -> None:
    data = {
        "a": [{"db_password": "x", "port": 1}],
        "settings": [{"name": "ssl.key.password", "value": "y"}],
        "empty": "",
    }
    assert without_secrets(data) == {
        "a": [{"db_password": "***", "port": 1}],
        "settings": [{"name": "ssl.key.password", "value": "***"}],
        "empty": "",
    }


@given(st.text(st.characters(categories=["Lu", "Ll", "Nd"]), min_size=6, max_size=20))
def test_no_secret_of_a_setting_is_left(secret: str) -> None:
    value = f"s3cr3t{secret}"
    said = json.dumps(without_secrets({"x": {"client_secret": value, "note": f"token={value}"}}))
    assert "s3cr3t" not in said


def test_it_is_bounded_and_says_what_was_cut() -> None:
    bundle = Bundle(part_bytes_max=10, bundle_bytes_max=25)
    for name in ("one", "two", "three"):
        bundle.text(name, lambda: "0123456789abcdef")
    assert bundle.names == ["one", "two"]
    assert bundle.cut["one"] == 16
    assert "the bundle is full" in bundle.missing["three"]


def test_one_part_that_fails_leaves_the_others(tmp_path: Path) -> None:
    def fail() -> Any:
        raise NetworkFailed("nobody")

    bundle = Bundle()
    bundle.data("bad.json", fail)
    bundle.data("good.json", lambda: {"a": 1})
    bundle.write(tmp_path / "b.tar.gz", "root", 0)
    parts = read(tmp_path / "b.tar.gz")
    assert json.loads(parts["good.json"]) == {"a": 1}
    assert json.loads(parts["manifest.json"])["missing"] == {"bad.json": "NetworkFailed: nobody"}
    with pytest.raises(FileExistsError):
        bundle.write(tmp_path / "b.tar.gz", "root", 0)


def test_of_a_long_log_the_last_whole_lines_are_taken(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"".join(b"line %07d\n" % n for n in range(LOG_BYTES // 10)))
    lines = end_of(log).splitlines()
    assert lines[-1] == f"line {LOG_BYTES // 10 - 1:07d}"
    assert all(len(line) == 12 for line in lines)


@pytest.mark.integration
def test_of_a_real_cluster_all_is_there_but_records_and_secrets(headrace_cluster: TestCluster, tmp_path: Path) -> None:
    topic = headrace_cluster.unique_topic()
    with headrace_cluster.producer() as producer:
        producer.send(topic, b"what nobody else may see", key=b"nor this key").result(30)
    directory, file = headrace_cluster.local.directory.path, tmp_path / "b.tar.gz"
    words = ["debug", "bundle", "--to", str(file), "--data-dir", str(directory), "-o", "json"]
    said = json.loads(runner.invoke(app, words).stdout)
    assert said["missing"] == {}
    parts = read(file)
    assert "state" in json.loads(parts["cluster/status.json"])
    assert topic in parts["cluster/topics.json"]
    assert {"local/logs/broker-1.log", "local/metrics/broker-1.txt", "local/supervisor.json"} <= parts.keys()
    everything = "\n".join(parts.values())
    assert "nobody else may see" not in everything
    assert "nor this key" not in everything
    assert "PRIVATE KEY" not in everything
    for secret in (f for f in directory.rglob("*token*") if f.is_file()):
        assert secret.read_text().strip() not in everything

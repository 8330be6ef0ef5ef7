"""What clients show: from settings, environment, profiles and files; to whom, and that nobody else sees it."""

from __future__ import annotations

import pickle
import stat
from pathlib import Path
from typing import Any

import pytest

from headrace._credentials import Credentials, FixedKey, KeyFile, LocalKeys, credentials_for
from headrace.consumer_settings import ConsumerSettings
from headrace.errors import CredentialInPlainText, InvalidConfig, Unauthenticated
from headrace.finding import ClusterAddress, find_cluster
from headrace.local_keys import local_keys_directory, read_local_keys, remove_local_key, write_local_key
from headrace.settings import ProducerSettings, read_settings
from headrace_common.core.access.api_keys import ID_BYTES, SECRET_BYTES, format_key
from headrace_common.core.secret import Secret

ONE, TWO = (format_key(bytes([n]) * ID_BYTES, bytes([n]) * SECRET_BYTES) for n in (1, 2))
HERE = "127.0.0.1:9292"
THERE = "kafka.example:9292"


def bearer(credentials: Credentials, target: str = HERE) -> str | None:
    said = dict(credentials.metadata(target))
    assert said.keys() <= {"authorization"}
    return None if not said else str(said["authorization"])


def settings(**given: Any) -> ProducerSettings:
    return read_settings(ProducerSettings, given)


# --- where it is from ---------------------------------------------------------------------------------------------


def test_settings_go_before_profiles_and_these_before_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    config.write_text('[p]\nbootstrap = "there:1"\napi_key_file = "/of/profile"\n[bare]\nbootstrap = "there:2"\n')
    env = {"HOME": str(tmp_path), "HEADRACE_CONFIG": str(config)}
    found = find_cluster(None, "p", env, Path.cwd)
    bare = find_cluster(None, "bare", env, Path.cwd)
    monkeypatch.setenv("HEADRACE_API_KEY_FILE", "/of/environment")

    def of(address: ClusterAddress, **given: Any) -> tuple[Secret | None, str | None]:
        meant = settings(**given).find(address)
        return meant.api_key, meant.api_key_file

    assert of(found, api_key=ONE) == (Secret(ONE), None)
    assert of(found, api_key_file="/given") == (None, "/given")
    assert of(found) == (None, "/of/profile")
    assert of(bare) == (None, "/of/environment")
    monkeypatch.setenv("HEADRACE_API_KEY", f"{TWO}\n")
    assert of(bare) == (Secret(TWO), None)
    assert of(found) == (None, "/of/profile")
    assert of(ClusterAddress(("a:1",), api_key=Secret(ONE))) == (Secret(ONE), None)


def test_a_key_and_a_file_are_one_too_many() -> None:
    with pytest.raises(InvalidConfig, match="api_key and api_key_file are both given"):
        settings(api_key=ONE, api_key_file="f").find("a:1")


@pytest.mark.parametrize("kind", [ProducerSettings, ConsumerSettings])
def test_no_settings_show_their_key(kind: type[ProducerSettings]) -> None:
    for made in (read_settings(kind, {"api.key": ONE}), kind(api_key=ONE)):
        found = made.find("a:1")
        assert ONE not in f"{made!r} {made} {found!r} {found}"
        assert "api_key=***" in repr(made)
        assert pickle.loads(pickle.dumps(found)).api_key.reveal() == ONE


TOKEN = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.c2lnbmF0dXJlLV8"


def test_a_token_of_an_issuer_is_shown_as_a_key_is(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    assert bearer(FixedKey(Secret(TOKEN), tls=True), THERE) == bearer(KeyFile(file, tls=False)) == f"Bearer {TOKEN}"
    file.write_text("eyJ" + "x" * 8_000 + ".x.y")
    assert KeyFile(file, tls=False)


@pytest.mark.parametrize(
    "text",
    [
        "hrk_short",
        ONE[:-1] + "0",
        "secret",
        "",
        TOKEN + ".x.y",
        TOKEN[:-20],
        TOKEN + "=",
        TOKEN.replace("eyJ", "eyK", 1),
    ],
)
def test_what_is_no_key_is_told_without_being_shown(text: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="api_key: this is no API key") as told:
        FixedKey(Secret(text), tls=True)
    assert not text or text not in str(told.value)
    file = tmp_path / "key"
    file.write_text(text)
    with pytest.raises(InvalidConfig, match=f"{file}: this is no API key"):
        KeyFile(file, tls=True)


def test_a_file_that_is_not_there_is_told_at_once(tmp_path: Path) -> None:
    address = ClusterAddress((HERE,), api_key_file=str(tmp_path / "none"))
    with pytest.raises(InvalidConfig, match=r"none, cannot be read: No such file"):
        credentials_for(address, address, {})


# --- to whom ------------------------------------------------------------------------------------------------------


def test_a_key_goes_in_plain_text_to_this_machine_alone() -> None:
    plain, tls = FixedKey(Secret(ONE), tls=False), FixedKey(Secret(ONE), tls=True)
    for target in (HERE, "localhost:1", "[::1]:1"):
        assert bearer(plain, target) == f"Bearer {ONE}"
    with pytest.raises(CredentialInPlainText, match=r"not sent to kafka.example:9292 in plain text.*use TLS") as told:
        plain.metadata(THERE)
    assert isinstance(told.value, Unauthenticated)
    assert ONE not in str(told.value)
    assert bearer(tls, THERE) == f"Bearer {ONE}"


@pytest.mark.parametrize("how", ["api_key", "api_key_file"])
def test_a_client_is_told_when_it_is_made(how: str, tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(ONE)
    given = {"api_key": ONE, "api_key_file": str(file)}[how]
    found = settings(**{how: given}).find([HERE, THERE])
    with pytest.raises(CredentialInPlainText):
        credentials_for(found, found, {})
    safe = settings(**{how: given}, ssl_ca_location="ca.pem").find([HERE, THERE])
    assert bearer(credentials_for(safe, safe, {}), THERE) == f"Bearer {ONE}"


# --- files that change --------------------------------------------------------------------------------------------


def test_a_file_is_read_again_when_it_has_changed(tmp_path: Path) -> None:
    file, other = tmp_path / "key", tmp_path / "other"
    file.write_text(f"{ONE}\n")
    shown = KeyFile(file, tls=False)
    assert bearer(shown) == f"Bearer {ONE}"
    began = shown.number
    assert not shown.changed_since(began)
    other.write_text(TWO)
    other.replace(file)
    assert bearer(shown) == f"Bearer {TWO}"
    assert shown.changed_since(began)
    assert not shown.changed_since(shown.number)


def test_what_is_refused_has_the_file_read_again(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_text(ONE)
    shown = KeyFile(file, tls=False)
    began = shown.number
    file.write_text(TWO)
    assert shown.changed_since(began)
    assert bearer(shown) == f"Bearer {TWO}"


def test_a_file_that_is_broken_later_leaves_the_key_of_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.touch(0o600)
    file.write_text(ONE)
    shown = KeyFile(file, tls=False)
    file.write_text(TWO[:20])
    assert bearer(shown) == f"Bearer {ONE}"
    assert bearer(shown) == f"Bearer {ONE}"
    assert [text for text in caplog.messages if "the key of before stays in use" in text] == caplog.messages[:1]
    assert TWO[:20] not in caplog.text
    file.unlink()
    assert bearer(shown) == f"Bearer {ONE}"
    file.write_text(TWO)
    assert bearer(shown) == f"Bearer {TWO}"


def test_a_key_that_everybody_may_read_is_warned_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "key"
    file.write_text(ONE)
    file.chmod(0o640)
    KeyFile(file, tls=True)
    assert not caplog.records
    file.chmod(0o644)
    KeyFile(file, tls=True)
    assert f"every user of this machine may read the API key in {file}" in caplog.text
    assert ONE not in caplog.text


# --- local clusters -----------------------------------------------------------------------------------------------


def test_programs_of_the_same_user_find_the_key_of_a_local_cluster(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    directory = local_keys_directory(env)
    assert directory == tmp_path / "headrace" / "local"
    file = write_local_key(directory, "one", [HERE, "127.0.0.1:9490", THERE], Secret(ONE))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    write_local_key(directory, "two", ["127.0.0.1:1"], Secret(TWO))
    shown = credentials_for(ClusterAddress((HERE,)), [HERE], env)
    assert bearer(shown) == bearer(shown, "127.0.0.1:9490") == f"Bearer {ONE}"
    assert bearer(shown, "127.0.0.1:1") == f"Bearer {TWO}"
    assert bearer(shown, "localhost:9292") == f"Bearer {ONE}"
    assert bearer(shown, "localhost:2") is None
    assert bearer(shown, "127.0.0.1:2") is None
    assert bearer(shown, THERE) is None, "a file names addresses of this machine, whatever it says"
    assert THERE not in read_local_keys(directory)
    remove_local_key(directory, "one")
    remove_local_key(directory, "one")
    assert read_local_keys(directory) == {"127.0.0.1:1": Secret(TWO)}


def test_a_new_cluster_at_the_ports_of_one_that_was_killed_is_shown_its_own_key(tmp_path: Path) -> None:
    for left in ("a", "z"):
        write_local_key(tmp_path, left, [HERE, "127.0.0.1:7"], Secret(ONE))
    write_local_key(tmp_path, "beside", ["127.0.0.1:1"], Secret(ONE))
    (tmp_path / "damaged.toml").write_text("= =")
    write_local_key(tmp_path, "m", [HERE], Secret(TWO), name="m-copy")
    assert read_local_keys(tmp_path) == {HERE: Secret(TWO), "127.0.0.1:1": Secret(ONE)}
    assert {file.stem for file in tmp_path.iterdir()} == {"m-copy", "beside", "damaged"}


def test_a_refused_client_looks_for_the_key_of_the_next_start(tmp_path: Path) -> None:
    shown = LocalKeys(tmp_path, tls=False)
    assert bearer(shown) is None
    began = shown.number
    assert not shown.changed_since(began)
    write_local_key(tmp_path, "one", [HERE], Secret(ONE))
    assert bearer(shown) is None, "nobody looks at each call"
    assert shown.changed_since(began)
    assert bearer(shown) == f"Bearer {ONE}"


def test_what_is_given_goes_before_the_local_file(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_local_key(local_keys_directory(env), "one", [HERE], Secret(ONE))
    address = ClusterAddress((HERE,), api_key=Secret(TWO))
    assert bearer(credentials_for(address, address, env)) == f"Bearer {TWO}"


@pytest.mark.parametrize("text", ["not toml = = ", "addresses = 3", 'addresses = ["a:1"]\napi_key = 3', "\0\0"])
def test_a_local_file_that_is_damaged_hides_no_other(
    text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_local_key(tmp_path, "one", [HERE], Secret(ONE))
    (tmp_path / "two.toml").write_text(text)
    assert read_local_keys(tmp_path) == {HERE: Secret(ONE)}
    assert "two.toml cannot be read" in caplog.text

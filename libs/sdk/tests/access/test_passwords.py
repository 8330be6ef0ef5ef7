"""Who has a password: which are taken, what names them, and when a client logs in again."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from headrace._credentials import Granted, LoginKey, PasswordLogin, credentials_for, read_password
from headrace._logging_in import log_in
from headrace._passwords import check_password
from headrace.errors import CredentialInPlainText, InvalidConfig, NetworkFailed, Rejected, Unauthenticated
from headrace.finding import ClusterAddress, UserLogin, credentialed
from headrace.local_keys import logins_directory, write_local_key
from headrace.settings import ProducerSettings, read_settings
from headrace_common.core.access.api_keys import format_key
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import PLAIN

HERE = "127.0.0.1:9292"
USER = UserLogin("alice", Secret("a quiet river bends"))
KEY = format_key(bytes(10), bytes(32))


@pytest.mark.parametrize(
    "password",
    ["", "short", "elevenchars", "password1234", "PasswordPassword", "qwertyuiopas", "123456789012", "aaaaaaaaaaaaaa",
     "alice1234567", "zxcvbnmasdfg"[:3] * 5, "x" * 1_001],
)  # fmt: skip
def test_what_is_tried_first_is_no_password(password: str) -> None:
    with pytest.raises(Rejected) as caught:
        check_password(password, "alice")
    assert not password or password not in str(caught.value)


@pytest.mark.parametrize("password", ["a quiet river bends", "twelve chars", "Ünïcödé wörds", "x7Gq-29fLp0Zr"])
def test_others_are_taken(password: str) -> None:
    check_password(password, "alice")


class Brokers:
    """They log somebody in, or not."""

    def __init__(self) -> None:
        self.lifetime_ms = 3_600_000
        self.failure: Exception | None = None
        self.logins = 0

    async def log_in(self, user: str, password: Secret, mechanism: str) -> Granted:
        assert (user, mechanism) == ("alice", "SCRAM-SHA-512")
        self.logins += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure
        return Granted(Secret(f"hrs_{self.logins}"), self.lifetime_ms)


async def test_a_session_is_had_once_and_again_when_most_of_it_is_over_or_it_was_refused() -> None:
    brokers, login = Brokers(), PasswordLogin(USER, tls=False)
    with pytest.raises(NetworkFailed):
        login.metadata(HERE)
    await asyncio.gather(*(login.ready(brokers.log_in) for _ in range(5)))
    await login.ready(brokers.log_in)
    assert (login.metadata(HERE), brokers.logins) == ((("authorization", "Bearer hrs_1"),), 1)
    assert login.changed_since(login.number), "it was refused: the next call logs in"
    assert not login.changed_since(login.number)
    brokers.lifetime_ms = 0
    await login.ready(brokers.log_in)
    with pytest.raises(NetworkFailed):
        login.metadata(HERE)
    brokers.lifetime_ms = 3_600_000
    await login.ready(brokers.log_in)
    assert brokers.logins == 3
    assert login.metadata(HERE) == (("authorization", "Bearer hrs_3"),)


async def test_who_was_refused_waits_longer_and_longer_before_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, login, waited = Brokers(), PasswordLogin(USER, tls=False), list[float]()

    async def pause(ms: float) -> None:
        waited.append(ms)

    monkeypatch.setattr("headrace._credentials.pause_ms", pause)
    brokers.failure = Unauthenticated("the name or the password is wrong")
    for _ in range(8):
        with pytest.raises(Unauthenticated):
            await asyncio.gather(*(login.ready(brokers.log_in) for _ in range(5)))
    assert brokers.logins == 8, "one for all who ask at once"
    assert waited == pytest.approx([100, 200, 400, 800, 1_600, 2_000, 2_000], rel=0.5)
    assert max(waited) <= 2_000
    brokers.failure = None
    await login.ready(brokers.log_in)
    assert login.metadata(HERE) == (("authorization", "Bearer hrs_9"),)
    assert login.changed_since(login.number)
    waited.clear()
    await login.ready(brokers.log_in)
    assert not waited, "it is the first try again"


async def test_while_a_session_is_good_a_login_that_fails_stops_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    brokers, login = Brokers(), PasswordLogin(USER, tls=False)
    await login.ready(brokers.log_in)
    monkeypatch.setattr(Granted, "is_due", True)
    brokers.failure = NetworkFailed("away")
    await login.ready(brokers.log_in)
    assert login.metadata(HERE) == (("authorization", "Bearer hrs_1"),)
    login.changed_since(login.number)
    brokers.failure = Unauthenticated("wrong")
    with pytest.raises(Unauthenticated):
        await login.ready(brokers.log_in)


@pytest.mark.parametrize(
    ("user", "password"), [("ali\x00ce", "a quiet river bends"), ("alice", "a quiet\triver bends")]
)
async def test_what_cannot_be_a_login_is_refused_and_no_broker_is_asked(user: str, password: str) -> None:
    with pytest.raises(Unauthenticated, match="nobody can log in as"):
        await log_in("127.0.0.1:1", PLAIN, user, Secret(password), "SCRAM-SHA-512")


async def test_without_the_library_a_login_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "scramp", None)
    with pytest.raises(Unauthenticated, match=r"pip install 'headrace\[login\]'"):
        await log_in("127.0.0.1:1", PLAIN, "alice", Secret("a quiet river bends"), "SCRAM-SHA-512")


def test_no_session_goes_to_another_machine_in_plain_text() -> None:
    for target in ("10.0.0.1:9292", "b1.example.com:9292"):
        with pytest.raises(CredentialInPlainText):
            PasswordLogin(USER, tls=False).metadata(target)
        with pytest.raises(CredentialInPlainText):
            credentials_for(ClusterAddress((target,), user=USER), [target], {})
    PasswordLogin(USER, tls=True).check(["b1.example.com:9292"])


def test_one_thing_is_shown_and_a_user_has_one_password() -> None:
    for wrong in (
        {"api_key": KEY, "username": "a", "password": "b"},
        {"api_key_file": "a", "token_file": "b"},
        {"username": "a"},
        {"password": "a"},
        {"username": "a", "password": "b", "password_file": "c"},
    ):
        with pytest.raises(InvalidConfig):
            read_settings(ProducerSettings, wrong).find(HERE)


def test_kafkas_names_and_the_environment() -> None:
    kafkas = {"sasl.username": "a", "sasl.password": "b", "sasl.mechanism": "SCRAM-SHA-256"}
    found = read_settings(ProducerSettings, kafkas | {"security.protocol": "SASL_PLAINTEXT"}).find(HERE)
    assert found.user == UserLogin("a", Secret("b"), None, "SCRAM-SHA-256")
    with pytest.raises(InvalidConfig):
        read_settings(ProducerSettings, kafkas | {"security.protocol": "SASL_SSL"}).find(HERE)
    with pytest.raises(InvalidConfig):
        read_settings(ProducerSettings, kafkas | {"sasl.mechanism": "PLAIN"})
    env = {"HEADRACE_USERNAME": "a", "HEADRACE_PASSWORD_FILE": "/f"}
    assert credentialed(ClusterAddress((HERE,)), None, None, env).user == UserLogin("a", None, "/f")
    assert credentialed(ClusterAddress((HERE,)), None, None, env | {"HEADRACE_TOKEN_FILE": "/t"}).user is None
    assert credentialed(ClusterAddress((HERE,), api_key_file="/k"), None, None, env).user is None
    assert "b" not in repr(found.user).replace("UserLogin", "").replace("bytes", "").split("password=")[1][:6]


def test_a_file_has_a_password_on_one_line(tmp_path: Path) -> None:
    file = tmp_path / "p"
    file.write_text("with a space \n")
    assert read_password(file).reveal() == "with a space "
    for wrong in ("", "\n", "a\nb\n"):
        file.write_text(wrong)
        with pytest.raises(InvalidConfig):
            read_password(file)


def test_the_login_is_shown_where_it_was_for_and_nowhere_else(tmp_path: Path) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    write_local_key(logins_directory(env), "one", [HERE], Secret(KEY))
    found = credentials_for(ClusterAddress((HERE,)), [HERE], env)
    assert isinstance(found, LoginKey)
    assert found.metadata(HERE) == (("authorization", f"Bearer {KEY}"),)
    elsewhere = credentials_for(ClusterAddress(("127.0.0.1:1",)), ["127.0.0.1:1"], env)
    assert elsewhere.metadata("127.0.0.1:1") == ()

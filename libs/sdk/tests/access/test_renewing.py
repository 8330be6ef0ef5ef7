"""Who has logged in by an issuer shows another token in time, and is told when only a person can go on."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from libs.common.tests.kit.provider import CLIENT, Provider, serving

from headrace._credentials import LOOK_MS, LoginKey, credential_place, credentials_for
from headrace._renewing import Issued, issue, read_issued, renew, write_issued
from headrace._sign_on import LEEWAY_MS, SignOn, read_tokens
from headrace.finding import ClusterAddress
from headrace.local_keys import logins_directory
from headrace_common.core.errors import (
    CredentialsExpired,
    InvalidConfig,
    NetworkFailed,
)
from headrace_common.core.secret import Secret
from headrace_common.runtime.clock import SystemClock

AT = "127.0.0.1:9292"


@pytest.fixture
def provider() -> Iterator[Provider]:
    with serving() as made:
        yield made


async def log_in(*_: Any) -> Any:
    raise AssertionError("nobody has a password")


def login_of(provider: Provider, **changes: Any) -> Issued:
    """One of now; its token is good for ``lifetime_s`` of the provider."""
    sign_on = SignOn("idp", provider.iss, CLIENT, ("openid",), "id_token")
    answer = provider._tokens(None)
    tokens = read_tokens(200, answer, sign_on, SystemClock().now_ms())
    return replace(issue((AT,), sign_on, tokens, f"{provider.iss}/token", f"{provider.iss}/revoke"), **changes)


def written(directory: Path, login: Issued) -> Path:
    return write_issued(directory, "cluster", login)


def shown(credentials: LoginKey) -> str:
    ((_, text),) = credentials.metadata(AT)
    return str(text).removeprefix("Bearer ")


def test_a_login_is_read_as_it_was_written_and_by_its_owner_alone(tmp_path: Path, provider: Provider) -> None:
    login = login_of(provider)
    file = written(tmp_path / "logins", login)
    assert read_issued(file) == login
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    without = replace(login, tokens=replace(login.tokens, refresh=None), revocation_endpoint=None)
    assert read_issued(written(tmp_path / "logins", without)) == without


def test_it_is_found_by_the_cluster_that_it_is_for(tmp_path: Path, provider: Provider) -> None:
    env = {"XDG_CONFIG_HOME": str(tmp_path)}
    login = login_of(provider)
    file = written(logins_directory(env), login)
    found = credentials_for(None, [AT], env)
    assert isinstance(found, LoginKey)
    assert shown(found) == login.tokens.bearer.reveal()
    address = ClusterAddress((AT,), "the default")
    assert credential_place(address, env) == f"headrace login ({file})"
    assert credential_place(ClusterAddress(("127.0.0.1:1",)), env) == "none"
    assert credential_place(address, {**env, "HEADRACE_API_KEY_FILE": "k"}) == "HEADRACE_API_KEY_FILE=k"
    secret = credential_place(address, {**env, "HEADRACE_API_KEY": "hrk_secret"})
    assert secret == "HEADRACE_API_KEY"
    of_profile = replace(address, api_key_file="p.key", source="profile 'p'")
    assert credential_place(of_profile, {**env, "HEADRACE_API_KEY": "x"}) == "api_key_file p.key of profile 'p'"


async def test_a_token_is_renewed_in_time_and_once_for_all_calls(tmp_path: Path, provider: Provider) -> None:
    file = written(tmp_path, login_of(provider))
    credentials, other = LoginKey(file, tls=False), LoginKey(file, tls=False)
    first = shown(credentials)
    await credentials.ready(log_in)
    assert provider.asked == []
    login = read_issued(file)
    assert login is not None
    written(tmp_path, replace(login, renew_ms=SystemClock().now_ms()))
    await asyncio.gather(*(one.ready(log_in) for one in (credentials, credentials, other, other)))
    assert provider.asked.count("refresh_token") == 1
    assert shown(credentials) == shown(other) != first
    assert (credentials.number, other.number) == (1, 1)
    renewed = read_issued(file)
    assert renewed is not None
    assert renewed.tokens.refresh != login.tokens.refresh, "each is good once"
    assert not renewed.is_due(SystemClock().now_ms())


async def test_while_streams_are_open_it_is_renewed_as_soon_as_it_is_due(tmp_path: Path, provider: Provider) -> None:
    login = login_of(provider)
    credentials = LoginKey(written(tmp_path, login), tls=False)
    assert credentials.look_ms() == LOOK_MS, "the file may become another before"
    due = replace(login, renew_ms=SystemClock().now_ms() + 200)
    written(tmp_path, due)
    await credentials.keep(log_in)
    wait_ms = credentials.look_ms()
    assert wait_ms is not None
    assert wait_ms <= 200
    written(tmp_path, replace(due, renew_ms=SystemClock().now_ms()))
    await credentials.keep(log_in)
    assert provider.asked.count("refresh_token") == 1
    assert shown(credentials) != login.tokens.bearer.reveal()


async def test_a_provider_that_is_away_matters_once_the_token_is_over(tmp_path: Path, provider: Provider) -> None:
    login = login_of(provider, renew_ms=0)
    away = replace(login, token_endpoint="http://127.0.0.1:1/token")
    credentials = LoginKey(written(tmp_path, away), tls=False)
    for _ in range(2):
        await credentials.ready(log_in)
        assert shown(credentials) == login.tokens.bearer.reveal()
    over = replace(away, tokens=replace(away.tokens, expires_ms=SystemClock().now_ms() - LEEWAY_MS))
    credentials = LoginKey(written(tmp_path, over), tls=False)
    with pytest.raises(NetworkFailed, match="to be renewed"):
        credentials.metadata(AT)
    with pytest.raises(NetworkFailed, match="no answer"):
        await credentials.ready(log_in)
    with pytest.raises(NetworkFailed, match=r"to be renewed .*no answer"):
        credentials.metadata(AT)
    written(tmp_path, replace(over, token_endpoint=login.token_endpoint))
    await credentials.ready(log_in)
    assert shown(credentials) != login.tokens.bearer.reveal()


@pytest.mark.parametrize("has_refresh", [True, False])
async def test_who_has_to_log_in_again_is_told_how(tmp_path: Path, provider: Provider, has_refresh: bool) -> None:
    provider.refusal = "invalid_grant"
    login = login_of(provider, renew_ms=0)
    over = replace(login.tokens, expires_ms=SystemClock().now_ms() - LEEWAY_MS)
    if not has_refresh:
        over = replace(over, refresh=None)
    credentials = LoginKey(written(tmp_path, replace(login, tokens=over)), tls=False)
    with pytest.raises(CredentialsExpired, match="headrace login --oidc idp"):
        await credentials.ready(log_in)
    if has_refresh:
        with pytest.raises(CredentialsExpired, match="headrace login --oidc idp"):
            credentials.metadata(AT)
    usable = replace(over, expires_ms=SystemClock().now_ms() + 60_000)
    credentials = LoginKey(written(tmp_path, replace(login, tokens=usable)), tls=False)
    await credentials.ready(log_in)
    assert shown(credentials)


async def test_who_is_refused_gets_another_token_but_not_again_and_again(tmp_path: Path, provider: Provider) -> None:
    file = written(tmp_path, login_of(provider))
    credentials = LoginKey(file, tls=False)
    number = credentials.number
    assert credentials.changed_since(number)
    with pytest.raises(NetworkFailed):
        credentials.metadata(AT)
    await credentials.ready(log_in)
    assert provider.asked.count("refresh_token") == 1
    assert not credentials.changed_since(credentials.number)
    await credentials.ready(log_in)
    assert provider.asked.count("refresh_token") == 1


async def test_who_is_refused_shows_what_another_program_has_got(tmp_path: Path, provider: Provider) -> None:
    file = written(tmp_path, login_of(provider, tokens=replace(login_of(provider).tokens, refresh=None)))
    credentials = LoginKey(file, tls=False)
    assert not credentials.changed_since(credentials.number)
    number, next = credentials.number, login_of(provider)
    written(tmp_path, next)
    assert credentials.changed_since(number)


def test_a_login_that_is_gone_or_is_another_is_not_renewed(tmp_path: Path, provider: Provider) -> None:
    file = written(tmp_path, login_of(provider))
    renew(file, Secret("another"))
    assert provider.asked == []
    file.unlink()
    with pytest.raises(InvalidConfig):
        renew(file, Secret("another"))
    assert os.listdir(tmp_path) == ["cluster.lock"]

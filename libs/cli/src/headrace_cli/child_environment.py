"""
What a command that starts another program tells it of its cluster: whom to trust there, and what to show.

It goes by the environment, which other users cannot read; a command line they can. Called by ``streams run``,
``streams spark`` and ``job run``; commands that ask the cluster in this process give clients the address itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from headrace.finding import (
    API_KEY_FILE_VARIABLE,
    API_KEY_VARIABLE,
    CA_VARIABLE,
    CERT_VARIABLE,
    KEY_VARIABLE,
    PASSWORD_FILE_VARIABLE,
    PASSWORD_VARIABLE,
    TOKEN_FILE_VARIABLE,
    USERNAME_VARIABLE,
    ClusterAddress,
    UserLogin,
)

_CREDENTIALS: Final = (
    API_KEY_VARIABLE,
    API_KEY_FILE_VARIABLE,
    TOKEN_FILE_VARIABLE,
    USERNAME_VARIABLE,
    PASSWORD_VARIABLE,
    PASSWORD_FILE_VARIABLE,
    CERT_VARIABLE,
    KEY_VARIABLE,
)


def child_environment(cluster: ClusterAddress, env: Mapping[str, str]) -> dict[str, str]:
    """
    ``env`` for a program that is told the addresses of ``cluster`` and has to reach it as this process does.

    Paths become absolute, so the program may run in another directory. Where ``cluster`` is spoken to in plain text the
    CA of ``env`` is left out; where nothing is said of a key, what ``env`` has stays, and else the program finds that
    of a local cluster itself.
    """
    found = dict(env)
    if cluster.ca is None:
        found.pop(CA_VARIABLE, None)
    else:
        found[CA_VARIABLE] = _absolute(cluster.ca)
    shown = _shown(cluster)
    if shown:
        return _without_credentials(found) | shown
    for variable in (API_KEY_FILE_VARIABLE, CERT_VARIABLE, KEY_VARIABLE):
        if file := found.get(variable):
            found[variable] = _absolute(file)
    return found


def _shown(cluster: ClusterAddress) -> dict[str, str]:
    """What says the same in the environment; empty: nothing is said."""
    certificate = cluster.certificate
    files = {} if certificate is None else {CERT_VARIABLE: certificate.cert, KEY_VARIABLE: certificate.key}
    if cluster.api_key_file is not None:
        files[API_KEY_FILE_VARIABLE] = cluster.api_key_file
    said = {variable: _absolute(file) for variable, file in files.items()}
    if cluster.api_key is not None:
        return said | {API_KEY_VARIABLE: cluster.api_key.reveal()}
    return said if cluster.user is None else said | _user_variables(cluster.user)


def _user_variables(user: UserLogin) -> dict[str, str]:
    if user.password is not None:
        return {USERNAME_VARIABLE: user.name, PASSWORD_VARIABLE: user.password.reveal()}
    assert user.password_file is not None, "there is one of them"
    return {USERNAME_VARIABLE: user.name, PASSWORD_FILE_VARIABLE: _absolute(user.password_file)}


def _without_credentials(env: Mapping[str, str]) -> dict[str, str]:
    """A key in the environment counts before a file there, so one of the two is told."""
    return {name: value for name, value in env.items() if name not in _CREDENTIALS}


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())

"""
Decides which cluster is meant, for the SDK, the command, the Spark connector and the pytest fixtures alike.

The first of these that is there: the argument, ``HEADRACE_BOOTSTRAP``, ``HEADRACE_PROFILE``, the profile that
``headrace profile use`` chose, the local cluster of ``./.headrace``, and ``127.0.0.1:9292``. Profiles are sections of
``~/.config/headrace/config.toml``, or of the file that ``HEADRACE_CONFIG`` names::

    profile = "staging"

    [staging]
    bootstrap = "b1.example.com:9292,b2.example.com:9292"
    output = "json"
    ca = "/etc/headrace/ca.crt"
    api_key_file = "/etc/headrace/staging.key"

A certificate is shown where one is asked for: ``cert_file`` and ``key_file``, of the argument, the profile, or
``HEADRACE_CERT`` and ``HEADRACE_KEY``. Who is given one shows no key that is found further down that list.

What a client shows of itself is the first of these: the argument, that of the profile, ``HEADRACE_API_KEY``,
``HEADRACE_API_KEY_FILE``, and on loopback what ``headrace.local_keys`` finds. A profile has the name of a file and
never the key, so that it can be read aloud.

Ports are reused: where a local cluster was, another may listen now. ``cluster.json`` therefore has the cluster's id,
and a client that was led by that file takes no answer of another cluster (``ClusterAddress.check``). A copied directory
has the same id, so the file also has the directory that it is of. What another user owns leads nobody: it may have been
put where one works. Where ``./.headrace`` is there and does not say all this, nothing is asked in its place: whoever
listens there would take the records.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, overload

from headrace_common.core.errors import InconsistentClusterId, InvalidConfig
from headrace_common.core.ids import Endpoint
from headrace_common.core.secret import Secret
from headrace_common.runtime.private_files import foreign_owner

DEFAULT_BOOTSTRAP: Final = "127.0.0.1:9292"
BOOTSTRAP_VARIABLE: Final = "HEADRACE_BOOTSTRAP"
PROFILE_VARIABLE: Final = "HEADRACE_PROFILE"
CA_VARIABLE: Final = "HEADRACE_CA"
API_KEY_VARIABLE: Final = "HEADRACE_API_KEY"
API_KEY_FILE_VARIABLE: Final = "HEADRACE_API_KEY_FILE"
TOKEN_FILE_VARIABLE: Final = "HEADRACE_TOKEN_FILE"
USERNAME_VARIABLE: Final = "HEADRACE_USERNAME"
PASSWORD_VARIABLE: Final = "HEADRACE_PASSWORD"
PASSWORD_FILE_VARIABLE: Final = "HEADRACE_PASSWORD_FILE"
CERT_VARIABLE: Final = "HEADRACE_CERT"
KEY_VARIABLE: Final = "HEADRACE_KEY"
CONFIG_VARIABLE: Final = "HEADRACE_CONFIG"
DATA_DIR: Final = ".headrace"
CLUSTER_FILE: Final = "cluster.json"
CHOSEN: Final = "profile"
"""The key of config.toml that names the profile to take where nothing else is said."""
PROFILE_KEYS: Final = (
    *("bootstrap", "output", "ca", "api_key_file", "token_file", "username", "password_file"),
    *("cert_file", "key_file"),
)
PLAINTEXT: Final = "PLAINTEXT"


@dataclass(frozen=True, slots=True)
class UserLogin:
    """Who logs in with a password."""

    name: str
    password: Secret | None = None
    password_file: str | None = None
    """Or the file that has it."""
    mechanism: str = "SCRAM-SHA-512"


@dataclass(frozen=True, slots=True)
class ClientCertificateFiles:
    """A certificate that a client shows where it is asked for one."""

    cert: str
    """The file with it, then those that lead from it to a CA, in PEM."""
    key: str
    """That of its key, in PEM, without a password."""


@dataclass(frozen=True, slots=True)
class ClusterAddress(Sequence[str]):
    """Where a cluster is. A sequence of its ``host:port``; clients take it as ``bootstrap_servers``."""

    servers: tuple[str, ...]
    source: str = "bootstrap_servers"
    """What named them."""
    cluster_id: str | None = None
    """Whose they are, if that is known."""
    file: str | None = None
    """The ``cluster.json`` that says so."""
    output: str | None = None
    """How the profile wants the command to print."""
    ca: str | None = None
    """The file with the CAs of its certificates; None: it is spoken to in plain text."""
    api_key: Secret | None = None
    """What clients show there."""
    api_key_file: str | None = None
    """Or the file that has it, or a token."""
    user: UserLogin | None = None
    """Or whom they log in as."""
    certificate: ClientCertificateFiles | None = None
    """What their connections show; it is who they are where that is asked for."""

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self.servers[index]

    def __len__(self) -> int:
        return len(self.servers)

    def __iter__(self) -> Iterator[str]:
        return iter(self.servers)

    def __str__(self) -> str:
        return ",".join(self.servers)

    def check(self, cluster_id: str, address: str) -> None:
        """
        Refuse what another cluster answers. The file is read again first: its cluster may have been made anew.

        Raises:
            InconsistentClusterId: the text names both, and what to do.
        """
        if self.cluster_id is None or cluster_id == self.cluster_id:
            return
        if self.file is not None and _id_now(Path(self.file).parent) == cluster_id:
            return
        start = "start that one with `headrace up`, or " if self.file else ""
        raise InconsistentClusterId(
            f"{address} is a broker of cluster {cluster_id!r}, and {self.file or self.source} names cluster "
            f"{self.cluster_id!r}, which is not there now; {start}name the other one: bootstrap_servers or "
            f"{BOOTSTRAP_VARIABLE}={address}"
        )


def bootstrap_addresses(given: str | Sequence[str] | None, source: str = "bootstrap_servers") -> ClusterAddress:
    """
    Where a client without further words begins; see the module's text.

    Args:
        source: the setting that ``given`` is of, for messages.

    Raises:
        InvalidConfig: an address is not ``host:port``, or a profile cannot be read, or ``./.headrace`` is there and
            does not tell where its cluster is.
    """
    if isinstance(given, ClusterAddress):
        return given
    if given is not None:
        return ClusterAddress(_addresses(given, source), source, ca=os.environ.get(CA_VARIABLE) or None)
    return find_cluster(None, None, os.environ, Path.cwd)


def secured(found: ClusterAddress, protocol: str | None, ca: str | None) -> ClusterAddress:
    """
    ``found`` as the settings of a client want it to be spoken to.

    Args:
        protocol: ``SSL``, ``PLAINTEXT``, or None: as is known of the cluster.
        ca: the file of its CAs, if the settings name one.

    Raises:
        InvalidConfig: by TLS, and with no file of CAs; or with one, and in plain text.
    """
    if protocol == PLAINTEXT:
        if ca is not None:
            raise InvalidConfig("ssl_ca_location needs TLS: leave security_protocol out, or write SSL")
        return replace(found, ca=None)
    ca = ca or found.ca
    if protocol is not None and ca is None:
        raise InvalidConfig(
            f"security_protocol SSL needs ssl_ca_location or {CA_VARIABLE}: a file with the CAs of the brokers' "
            "certificates, in PEM; the system's are often in /etc/ssl/certs/ca-certificates.crt"
        )
    return replace(found, ca=ca)


def credentialed(
    found: ClusterAddress,
    api_key: Secret | None,
    api_key_file: str | None,
    env: Mapping[str, str],
    *,
    token_file: str | None = None,
    user: UserLogin | None = None,
    certificate: ClientCertificateFiles | None = None,
) -> ClusterAddress:
    """
    ``found`` with what a client shows there: what its settings name, else what ``found`` has, else what ``env`` says.

    Raises:
        InvalidConfig: the settings name more than one thing to show, or a user without a password, or a certificate for
            a cluster that is spoken to in plain text.
    """
    if (certificate or found.certificate) is not None and found.ca is None:
        raise InvalidConfig(
            f"cert_file needs TLS: name the file of the cluster's CAs, ssl_ca_location or {CA_VARIABLE}"
        )
    given = {"api_key": api_key, "api_key_file": api_key_file, "token_file": token_file, "username": user}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise InvalidConfig(f"{' and '.join(named)} are both given; leave one out")
    known = found.api_key, found.api_key_file, found.user, found.certificate
    if not named and certificate is None and all(one is None for one in known):
        certificate = None if found.ca is None else _certificate_in(env)
        text = env.get(API_KEY_VARIABLE)
        api_key = Secret(text.strip()) if text else None
        if api_key is None:
            api_key_file = env.get(API_KEY_FILE_VARIABLE) or env.get(TOKEN_FILE_VARIABLE) or None
        if (api_key, api_key_file) == (None, None):
            user = user_login(
                env.get(USERNAME_VARIABLE) or None,
                _secret(env.get(PASSWORD_VARIABLE)),
                env.get(PASSWORD_FILE_VARIABLE) or None,
            )
    elif not named and certificate is None:
        return found
    shown = api_key_file or token_file
    return replace(found, api_key=api_key, api_key_file=shown, user=user, certificate=certificate)


def certificate_files(cert: str | None, key: str | None) -> ClientCertificateFiles | None:
    """
    What a client shows; None: nothing.

    Raises:
        InvalidConfig: one of the two files is not named.
    """
    if cert is None and key is None:
        return None
    if cert is None or key is None:
        raise InvalidConfig(
            f"cert_file and key_file are given together, as are {CERT_VARIABLE} and {KEY_VARIABLE}: a certificate, and "
            "its key"
        )
    return ClientCertificateFiles(cert, key)


def _certificate_in(env: Mapping[str, str]) -> ClientCertificateFiles | None:
    return certificate_files(env.get(CERT_VARIABLE) or None, env.get(KEY_VARIABLE) or None)


def user_login(
    name: str | None, password: Secret | None, password_file: str | None, mechanism: str | None = None
) -> UserLogin | None:
    """
    Who logs in; None: nobody is named.

    Raises:
        InvalidConfig: a name without a password, or a password without a name, or two.
    """
    if name is None and password is None and password_file is None:
        return None
    if name is None or (password is None) == (password_file is None):
        raise InvalidConfig(
            "who logs in has a username and one of password and password_file; or HEADRACE_USERNAME and "
            "HEADRACE_PASSWORD or HEADRACE_PASSWORD_FILE"
        )
    return UserLogin(name, password, password_file, mechanism or "SCRAM-SHA-512")


def _secret(text: str | None) -> Secret | None:
    return Secret(text) if text else None


def find_cluster(
    bootstrap: str | None, profile: str | None, env: Mapping[str, str], here: Callable[[], Path]
) -> ClusterAddress:
    """
    The same for who may be told a profile; ``here`` gives the directory in which to look for a local cluster.

    Raises:
        InvalidConfig: an address is not ``host:port``; there is no such profile, or its file cannot be read; the local
            cluster's directory is there and does not tell where its cluster is.
    """
    file, ca = config_file(env), env.get(CA_VARIABLE) or None
    from_env = env.get(BOOTSTRAP_VARIABLE)
    named = profile or (None if bootstrap or from_env else env.get(PROFILE_VARIABLE) or chosen_profile(file))
    section = read_profile(named, file) if named else {}
    if bootstrap:
        found = ClusterAddress(_addresses(bootstrap, "--bootstrap"), "--bootstrap", ca=section.get("ca", ca))
    elif in_profile := section.get("bootstrap"):
        source = f"profile {named!r}"
        found = ClusterAddress(_addresses(in_profile, source), source, ca=section.get("ca", ca))
    elif from_env:
        found = ClusterAddress(_addresses(from_env, BOOTSTRAP_VARIABLE), BOOTSTRAP_VARIABLE, ca=ca)
    else:
        found = _nearby(here, ca)
    return replace(
        found,
        output=section.get("output"),
        api_key_file=section.get("api_key_file") or section.get("token_file"),
        user=user_login(section.get("username"), None, section.get("password_file")),
        certificate=certificate_files(section.get("cert_file"), section.get("key_file")),
    )


def _nearby(here: Callable[[], Path], ca: str | None) -> ClusterAddress:
    try:
        directory = here()
    except OSError:  # it was removed meanwhile
        directory = None
    local = local_cluster(directory / DATA_DIR) if directory is not None else None
    return local or ClusterAddress((DEFAULT_BOOTSTRAP,), "the default", ca=ca)


def local_cluster(data_dir: Path) -> ClusterAddress | None:
    """
    The local cluster that was last started on this directory; None where there is no such directory.

    Raises:
        InvalidConfig: it is there, and no address can be taken for that of its own cluster; the text says why.
    """
    file = data_dir / CLUSTER_FILE
    local = _read_cluster_file(file)
    if local is None:
        return None
    servers, id, written_in = local["bootstrap_servers"], local.get("cluster_id"), local.get("data_dir")
    here = os.path.realpath(data_dir)
    if written_in not in (None, here):
        raise _unusable(f"{file} was copied or moved from {written_in}; `headrace up` starts the cluster of {here}")
    if not servers:
        raise _unusable(f"{file} has no address of a broker, for no start has come so far; `headrace up` starts one")
    if id is None:
        raise _unusable(f"{file} has no cluster id: the first start is not ready yet, or did not get so far; {_START}")
    if written_in is None:
        raise _unusable(f"{file} has no data_dir: an older version wrote it; {_START}")
    return ClusterAddress(tuple(servers), str(file), id, str(file), ca=local.get("ca"))


_START: Final = "`headrace up` writes it again, after `headrace down` where the cluster runs"


def _unusable(text: str) -> InvalidConfig:
    return InvalidConfig(f"{text}. For another cluster give bootstrap_servers, --bootstrap or {BOOTSTRAP_VARIABLE}")


def _id_now(data_dir: Path) -> str | None:
    try:
        local = local_cluster(data_dir)
    except InvalidConfig:
        return None
    return None if local is None else local.cluster_id


def _read_cluster_file(file: Path) -> dict[str, Any] | None:
    """What ``cluster.json`` says; None where its directory is not there. Raises: InvalidConfig."""
    try:
        text = _read_own(file)
    except NotADirectoryError:
        raise _unusable(
            f"{file.parent} is a file, and a local cluster's directory has this name; move it away, then `headrace up`"
        ) from None
    except FileNotFoundError:
        if not os.path.lexists(file.parent):
            return None
        raise _unusable(f"{file.parent} is there, and {file} is not; {_START}") from None
    except (OSError, ValueError) as error:
        for path in (file.parent, file):  # one of which may be closed to us
            _refuse_foreign(path)
        raise _unusable(f"{file} cannot be read: {error}; {_START}") from None
    try:
        local: dict[str, Any] = json.loads(text)
        told = [local["bootstrap_servers"], local.get("cluster_id"), local.get("data_dir"), local.get("ca")]
    except (ValueError, KeyError, TypeError, AttributeError):
        told = [None, None, None]
    servers, *texts = told
    sound = isinstance(servers, list) and all(isinstance(server, str) for server in servers)
    if not sound or not all(value is None or isinstance(value, str) for value in texts):
        raise _unusable(f"{file} is damaged; {_START}")
    return local


def _read_own(file: Path) -> str:
    """
    Its text, of a directory that nobody swaps meanwhile for another one.

    Raises:
        InvalidConfig: it, or its directory, is another user's.
        OSError, ValueError: it cannot be read.
    """
    at = os.open(file.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _refuse_foreign(file.parent, at)
        with open(os.open(file.name, os.O_RDONLY, dir_fd=at), encoding="utf-8") as opened:
            _refuse_foreign(file, opened.fileno())
            return opened.read()
    finally:
        os.close(at)


def _refuse_foreign(path: Path, opened: int | None = None) -> None:
    owner = foreign_owner(path, opened)
    if owner is not None:
        raise _unusable(
            f"{path} belongs to another user (uid {owner}), who could lead your records and your key anywhere; "
            "`headrace up` in a directory of your own starts a cluster"
        )


# --- profiles -------------------------------------------------------------------------------------------------


def config_directory(env: Mapping[str, str]) -> Path:
    """Where Headrace keeps what is a user's own."""
    base = env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(base) / "headrace"


def config_file(env: Mapping[str, str]) -> Path:
    """Where profiles are."""
    if named := env.get(CONFIG_VARIABLE):
        return Path(named).expanduser()
    return config_directory(env) / "config.toml"


def read_config(path: Path) -> dict[str, Any]:
    """
    What the file says; nothing where there is none.

    Raises:
        InvalidConfig: it is no TOML, or cannot be read.
    """
    if not path.exists():
        return {}
    import tomllib

    try:
        return tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"{path} cannot be read: {error}; correct it, or remove it") from None


def chosen_profile(path: Path) -> str | None:
    """The profile that ``headrace profile use`` chose. Raises: InvalidConfig."""
    chosen = read_config(path).get(CHOSEN)
    if chosen is None or isinstance(chosen, dict):  # a section of that name is a profile
        return None
    if not isinstance(chosen, str):
        raise InvalidConfig(f"{path}: {CHOSEN} takes the name of a profile; `headrace profile use NAME` writes it")
    return chosen or None


def profiles(path: Path) -> dict[str, dict[str, Any]]:
    """All profiles by name. Raises: InvalidConfig."""
    return {name: section for name, section in read_config(path).items() if isinstance(section, dict)}


def read_profile(name: str, path: Path) -> dict[str, str]:
    """
    One profile.

    Raises:
        InvalidConfig: there is no such profile (the text has those there are), or it is not written as it must be.
    """
    known = profiles(path)
    if name not in known:
        there = ", ".join(sorted(known)) or "none"
        raise InvalidConfig(
            f"there is no profile {name!r} in {path}; there are: {there}; "
            f"`headrace profile set {name} --bootstrap HOST:PORT` makes it"
        )
    section = known[name]
    unknown = sorted(section.keys() - set(PROFILE_KEYS))
    if unknown or not all(isinstance(value, str) for value in section.values()):
        raise InvalidConfig(
            f"profile {name!r} in {path} may have {', '.join(PROFILE_KEYS)}, all texts: look at "
            f"{', '.join(unknown) or 'their values'}; `headrace profile show {name}` shows it"
        )
    return section


# --- addresses ------------------------------------------------------------------------------------------------


def _addresses(given: Any, source: str) -> tuple[str, ...]:
    if not isinstance(given, str | Sequence):
        raise InvalidConfig(
            f"{source} is a text or a list of host:port, not {type(given).__name__}; settings are keyword arguments, "
            "so write (**settings) for those in a dict"
        )
    texts = given.split(",") if isinstance(given, str) else list(given)
    addresses: list[str] = []
    for text in texts:
        try:
            endpoint = Endpoint.parse(text)
        except (ValueError, AttributeError):
            raise InvalidConfig(
                f"{source}: {text!r} is not an address; write host:port, as in {DEFAULT_BOOTSTRAP}"
            ) from None
        if not endpoint.port:
            raise InvalidConfig(f"{source}: {text!r} has port 0; give the port that a broker listens on")
        addresses.append(str(endpoint))
    if not addresses:
        raise InvalidConfig(f"{source} is empty; give at least one host:port")
    return tuple(dict.fromkeys(addresses))

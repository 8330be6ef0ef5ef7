"""
Decides what a client shows of itself: an API key, from its settings, from a file, or of a local cluster. A token of an
issuer that the cluster takes stands for a key wherever one is given.

A transport has one, and asks it at the start of each call and stream. A key never goes out in plain text but to this
machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable, Coroutine, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from headrace._renewing import Issued, read_issued, renew
from headrace._sign_on import again
from headrace.errors import CredentialInPlainText
from headrace.finding import (
    API_KEY_FILE_VARIABLE,
    API_KEY_VARIABLE,
    CERT_VARIABLE,
    TOKEN_FILE_VARIABLE,
    USERNAME_VARIABLE,
    ClientCertificateFiles,
    ClusterAddress,
    UserLogin,
)
from headrace.local_keys import (
    POD_TOKEN,
    find_login,
    local_keys_directory,
    logins_directory,
    read_key_file,
    read_local_keys,
)
from headrace_common.core.errors import (
    CredentialsExpired,
    HeadraceError,
    InvalidConfig,
    NetworkFailed,
    Rejected,
    Unauthenticated,
)
from headrace_common.core.ids import is_loopback
from headrace_common.core.secret import Secret
from headrace_common.rpc.channels import Metadata
from headrace_common.runtime.clock import Deadline, SystemClock, pause_ms
from headrace_common.runtime.threads import run_in_thread

FILE_BYTES_MAX: Final = 8_200
"""The longest token, and the end of its line."""
_TOKEN: Final = re.compile(r"eyJ[A-Za-z0-9_-]*\.[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+")
_HEADER: Final = "authorization"
_RENEW_AGAIN_MS: Final = 30_000.0
"""After a renewal that failed, while what there is is still good."""
_REFUSED_AGAIN_MS: Final = 60_000.0
"""Who is refused with a new token too gains nothing by the next one."""
_RENEWED_AFTER: Final = 0.8
"""Of a session's life."""
_LOGIN_AGAIN_MS: Final = 100.0
_LOGIN_AGAIN_MS_MAX: Final = 2_000.0
"""Who was refused with a password waits before the next try, each time twice as long, up to this."""
_TRIES_LEFT: Final = 20
"""How often a session is tried to be renewed, where that fails, until it is over."""
LOOK_MS: Final = 10_000.0
"""How often a file is looked at while nobody calls, and streams are open that were begun with what was in it."""
_LOOK_MS_MIN: Final = 50.0

_log = logging.getLogger("headrace")


def bearer_metadata(bearer: Secret, target: str, *, tls: bool) -> Metadata:
    """
    What shows ``bearer`` to ``host:port``.

    Raises:
        CredentialInPlainText: that is another machine, and not spoken to by TLS.
    """
    if not tls and not is_loopback(target):
        raise CredentialInPlainText.to(target)
    return ((_HEADER, f"Bearer {bearer.reveal()}"),)


class Granted:
    """A session that was had by logging in."""

    def __init__(self, token: Secret, lifetime_ms: int) -> None:
        self.token = token
        self._due = Deadline(lifetime_ms * _RENEWED_AFTER)
        self._end = Deadline(lifetime_ms)
        self._pause_ms = min(_RENEW_AGAIN_MS, lifetime_ms * (1 - _RENEWED_AFTER) / _TRIES_LEFT)

    @property
    def is_due(self) -> bool:
        """Whether it is time for another one."""
        return self.due_ms <= 0

    @property
    def due_ms(self) -> float:
        """How long until then."""
        return self._due.left_ms

    def put_off(self) -> None:
        """Another one could not be had: it is due again in a while."""
        self._due = Deadline(self._pause_ms)

    @property
    def is_over(self) -> bool:
        return self._end.left_ms <= 0


LogIn: TypeAlias = Callable[[str, Secret, str], Coroutine[Any, Any, Granted]]
"""Logs in as somebody, with a password, by a mechanism of SCRAM."""


class Credentials:
    """What one client shows. Any thread."""

    def __init__(self, *, tls: bool) -> None:
        self._tls = tls
        self.number = 0
        """Of what is shown now; another one is counted up."""

    def metadata(self, target: str) -> Metadata:
        """
        What a call to ``host:port`` has beside its own metadata.

        Raises:
            CredentialInPlainText: it would show a key to another machine, and not by TLS.
        """
        key = self._key_for(target)
        if key is None:
            return ()
        return bearer_metadata(key, target, tls=self._tls)

    def check(self, targets: Iterable[str]) -> None:
        """
        Look at what would be shown, whether or not it is there yet.

        Raises:
            CredentialInPlainText: one of ``targets`` would be shown a key in plain text.
        """
        for target in targets:
            Credentials.metadata(self, target)

    logs_in = False
    """Whether ``ready`` has to be awaited before a call."""

    async def ready(self, log_in: LogIn) -> None:
        """
        Have something to show.

        Raises:
            HeadraceError: nothing could be had.
        """

    def changed_since(self, number: int) -> bool:
        """A call that was begun with ``number`` was refused for what it showed: whether it would show another now."""
        self._look_again()
        return self.number != number

    def look_ms(self) -> float | None:
        """In how many ms ``keep`` is to be called while streams are open; None: there will be nothing else to show."""
        return None

    async def keep(self, log_in: LogIn) -> None:
        """
        Have another one to show where it is time for that, or somebody has put it there: it has another ``number``.

        Raises:
            HeadraceError: what there is is over, and no other could be had.
        """

    def _key_for(self, target: str) -> Secret | None:
        raise NotImplementedError

    def _look_again(self) -> None:
        """Whether there is something else to show."""


class FixedKey(Credentials):
    """One that the settings name."""

    def __init__(self, key: Secret, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._key = checked(key, "api_key")

    def _key_for(self, target: str) -> Secret | None:
        return self._key


class KeyFile(Credentials):
    """
    The one that is in a file, which is looked at with each call: that costs a few microseconds.

    Raises:
        InvalidConfig: it cannot be read, or has no key. When that is so later, the key of before stays in use.
    """

    def __init__(self, file: Path, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._file = file
        self._seen = _stamp(file)
        self._key = self._read()
        if _others_read(file):
            _log.warning("every user of this machine may read the API key in %s: chmod 600 it", file)

    def _read(self) -> Secret:
        return read_key(self._file)

    def _key_for(self, target: str) -> Secret | None:
        if _stamp(self._file) != self._seen:
            self._read_again()
        return self._key

    def _look_again(self) -> None:
        self._read_again()

    def look_ms(self) -> float | None:
        return LOOK_MS

    async def keep(self, log_in: LogIn) -> None:
        self._key_for("")

    def _read_again(self) -> None:
        self._seen = _stamp(self._file)
        try:
            key = self._read()
        except InvalidConfig as error:
            _log.warning("%s; the key of before stays in use", error)
            return
        if key != self._key:
            self._key = key
            self.number += 1


class LocalKeys(Credentials):
    """Those of the closed clusters that the same user has started on this machine, each for its own addresses."""

    def __init__(self, directory: Path, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._directory = directory
        self._keys: Mapping[str, Secret] | None = None

    def _key_for(self, target: str) -> Secret | None:
        if not is_loopback(target):
            return None
        if self._keys is None:
            self._keys = read_local_keys(self._directory)
        # A cluster holds its ports at ::1 as well, so nobody else answers where localhost leads.
        host, _, port = target.rpartition(":")
        return self._keys.get(f"127.0.0.1:{port}" if host == "localhost" else target)

    def _look_again(self) -> None:
        keys = read_local_keys(self._directory)
        if keys != self._keys:
            self._keys = keys
            self.number += 1


class PasswordLogin(Credentials):
    """
    Who has a password shows a session, which is had at any broker and good for all nodes. A new one is had when most of
    its life is over, and after it was refused.
    """

    logs_in = True

    def __init__(self, user: UserLogin, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._user = user
        self._password()
        self._session: Granted | None = None
        self._logging_in: asyncio.Task[Granted] | None = None
        self._pause_ms = 0.0
        self._may_log_in: Deadline | None = None

    def metadata(self, target: str) -> Metadata:
        """
        Raises:
            CredentialInPlainText: to another machine, and not by TLS.
            NetworkFailed: there is no session yet, or none any more; ``ready`` gets one.
        """
        if not self._tls and not is_loopback(target):
            raise CredentialInPlainText.to(target, "password")
        session = self._session
        if session is None or session.is_over:
            raise NetworkFailed(f"{self._user.name} has to log in again; nothing was sent")
        return ((_HEADER, f"Bearer {session.token.reveal()}"),)

    def check(self, targets: Iterable[str]) -> None:
        """Raises: CredentialInPlainText: one of these is another machine, and not spoken to by TLS."""
        for target in targets:
            if not self._tls and not is_loopback(target):
                raise CredentialInPlainText.to(target, "password")

    async def ready(self, log_in: LogIn) -> None:
        session = self._session
        if session is not None and not session.is_due:
            return
        loop, task = asyncio.get_running_loop(), self._logging_in
        if task is None or task.get_loop() is not loop or task.done():
            task = self._logging_in = loop.create_task(self._log_in_by(log_in))
            task.add_done_callback(_retrieve)
        try:
            granted = await asyncio.shield(task)
        except HeadraceError:
            if session is not None and not session.is_over:
                session.put_off()
                return  # it is good for some time yet
            raise
        if granted is not self._session:
            self._session = granted
            self.number += 1

    async def _log_in_by(self, log_in: LogIn) -> Granted:
        if self._may_log_in is not None:
            await pause_ms(self._may_log_in.left_ms)
        try:
            granted = await log_in(self._user.name, self._password(), self._user.mechanism)
        except Unauthenticated:
            self._pause_ms = min(max(2 * self._pause_ms, _LOGIN_AGAIN_MS), _LOGIN_AGAIN_MS_MAX)
            self._may_log_in = Deadline(self._pause_ms)
            raise
        self._pause_ms, self._may_log_in = 0.0, None
        return granted

    def look_ms(self) -> float | None:
        return LOOK_MS if self._session is None else max(_LOOK_MS_MIN, self._session.due_ms)

    async def keep(self, log_in: LogIn) -> None:
        if self._session is not None:  # one that was refused is the next call's to replace
            await self.ready(log_in)

    def _look_again(self) -> None:
        """What was shown was refused: log in anew."""
        if self._session is not None:
            self._session = None
            self.number += 1

    def _password(self) -> Secret:
        if self._user.password is not None:
            return self._user.password
        assert self._user.password_file is not None, "settings have looked"
        return read_password(Path(self._user.password_file).expanduser())


def _now_ms() -> int:
    return SystemClock().now_ms()


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Whoever waits sees the error; nobody is warned where nobody waits any more."""
    if not task.cancelled():
        task.exception()


def read_password(file: Path) -> Secret:
    """
    The password in a file, without the end of its line.

    Raises:
        InvalidConfig: it cannot be read, or has none.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"the file with the password, {file}, cannot be read: {type(error).__name__}") from None
    password = text.rstrip("\r\n")
    if not password or "\n" in password:
        raise InvalidConfig(f"the file {file} has no password, or more than one line")
    return Secret(password)


class LoginKey(KeyFile):
    """
    The key that ``headrace login`` has got, from the file that it wrote; or the token, of which there is another one in
    time where the issuer gives that.
    """

    logs_in = True

    def __init__(self, file: Path, *, tls: bool) -> None:
        self._issued: Issued | None = None
        """Where it is a token."""
        self._renewing: asyncio.Task[None] | None = None
        self._refused: Deadline | None = None
        """Since the token was refused, another one is wanted for that at most so often."""
        self._wanted = False
        self._next_try: Deadline | None = None
        self._failure: HeadraceError | None = None
        """Why the last renewal failed."""
        super().__init__(file, tls=tls)

    def metadata(self, target: str) -> Metadata:
        """
        Raises:
            CredentialInPlainText: to another machine, and not by TLS.
            NetworkFailed: another token is wanted; ``ready`` gets it.
            CredentialsExpired: and it did not: somebody has to log in again.
        """
        shown = super().metadata(target)
        issued = self._issued
        if issued is not None and issued.tokens.refresh is not None and (self._wanted or issued.is_over(_now_ms())):
            if isinstance(self._failure, CredentialsExpired):
                raise self._failure
            why = "" if self._failure is None else f" ({self._failure})"
            raise NetworkFailed(f"the login by {issued.sign_on.alias} has to be renewed{why}; nothing was sent")
        return shown

    async def ready(self, log_in: LogIn) -> None:
        self._key_for("")  # another program may have renewed it
        issued = self._issued
        if issued is None or not (self._wanted or issued.is_due(_now_ms())):
            return
        is_over = issued.is_over(_now_ms())
        if issued.tokens.refresh is None:
            if is_over:
                raise CredentialsExpired(f"the login by {issued.sign_on.alias} is over; {again(issued.sign_on.alias)}")
            return
        usable = not is_over and not self._wanted
        if usable and self._next_try is not None and self._next_try.left_ms > 0:
            return
        loop, task = asyncio.get_running_loop(), self._renewing
        if task is None or task.get_loop() is not loop or task.done():
            bearer = issued.tokens.bearer
            task = self._renewing = loop.create_task(run_in_thread(lambda: renew(self._file, bearer)))
            task.add_done_callback(_retrieve)
        try:
            await asyncio.shield(task)
        except HeadraceError as error:
            self._failure, self._next_try = error, Deadline(_RENEW_AGAIN_MS)
            if not usable:
                raise
            _log.warning("%s; what there is is good for some time yet", error)
            return
        self._wanted, self._failure = False, None
        self._read_again()

    def look_ms(self) -> float | None:
        issued, now_ms = self._issued, _now_ms()
        if issued is None or issued.is_due(now_ms):
            return LOOK_MS  # or it could not be had
        return max(_LOOK_MS_MIN, min(LOOK_MS, issued.renew_ms - now_ms))

    async def keep(self, log_in: LogIn) -> None:
        if not self._wanted:  # what was refused is the next call's to replace
            await self.ready(log_in)

    def _read_again(self) -> None:
        before = self.number
        super()._read_again()
        if self.number != before:
            self._wanted, self._failure = False, None

    def changed_since(self, number: int) -> bool:
        """See ``Credentials``: who is refused with what is not shown any more wants no other."""
        return self.number != number or super().changed_since(number)

    def _look_again(self) -> None:
        """What is shown was refused: another program may have got another, or it is time to get one."""
        before = self.number
        self._read_again()
        issued = self._issued
        if self.number != before or issued is None or issued.tokens.refresh is None:
            return
        if issued.is_due(_now_ms()) or self._refused is None or self._refused.left_ms <= 0:
            self._refused = Deadline(_REFUSED_AGAIN_MS)
            self._wanted = True
            self.number += 1

    def _read(self) -> Secret:
        try:
            _, key = read_key_file(self._file)
            self._issued = read_issued(self._file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise InvalidConfig(f"the login {self._file} cannot be read: {type(error).__name__}") from None
        return checked(key, str(self._file))


class CertificateShown(Credentials):
    """
    That of the connections, and nothing beside it. Its files are looked at with each call; who has new ones connects
    anew.
    """

    def __init__(self, files: ClientCertificateFiles, *, tls: bool) -> None:
        super().__init__(tls=tls)
        self._files = Path(files.cert).expanduser(), Path(files.key).expanduser()
        self._seen = self._stamps()

    def _stamps(self) -> tuple[tuple[int, ...] | None, ...]:
        return tuple(map(_stamp, self._files))

    def _key_for(self, target: str) -> Secret | None:
        self._look_again()
        return None

    def look_ms(self) -> float | None:
        return LOOK_MS

    async def keep(self, log_in: LogIn) -> None:
        self._look_again()

    def _look_again(self) -> None:
        now = self._stamps()
        if now != self._seen:
            self._seen = now
            self.number += 1


def credentials_for(address: ClusterAddress | None, targets: Iterable[str], env: Mapping[str, str]) -> Credentials:
    """
    What a client shows to the cluster at ``targets``.

    Raises:
        InvalidConfig: what is named for it is no key.
        CredentialInPlainText: one of ``targets`` would be shown a key in plain text.
    """
    tls = address is not None and address.ca is not None
    found: Credentials
    if address is not None and address.api_key is not None:
        found = FixedKey(address.api_key, tls=tls)
    elif address is not None and address.api_key_file is not None:
        found = KeyFile(Path(address.api_key_file).expanduser(), tls=tls)
    elif address is not None and address.user is not None:
        found = PasswordLogin(address.user, tls=tls)
    elif address is not None and address.certificate is not None:
        return CertificateShown(address.certificate, tls=tls)
    elif (file := find_login(logins_directory(env), targets)) is not None:
        found = LoginKey(file, tls=tls)
    else:
        local = LocalKeys(local_keys_directory(env), tls=tls)
        if not tls or not POD_TOKEN.exists() or any(local.metadata(target) for target in targets):
            return local
        found = KeyFile(POD_TOKEN, tls=tls)
    found.check(targets)
    return found


def credential_place(address: ClusterAddress, env: Mapping[str, str]) -> str:
    """Where what a client shows comes from that has no words of its own, in the order of ``credentials_for``."""
    for setting, value in (
        ("api_key_file", address.api_key_file),
        ("username", None if address.user is None else address.user.name),
        ("cert_file", None if address.certificate is None else address.certificate.cert),
    ):
        if value is not None:
            return f"{setting} {value} of {address.source}"
    tls = address.ca is not None
    variables = (API_KEY_VARIABLE, API_KEY_FILE_VARIABLE, TOKEN_FILE_VARIABLE, USERNAME_VARIABLE)
    for variable in (*variables, *((CERT_VARIABLE,) if tls else ())):
        if env.get(variable):
            return variable if variable == API_KEY_VARIABLE else f"{variable}={env[variable]}"
    login = find_login(logins_directory(env), address)
    if login is not None:
        return f"headrace login ({login})"
    if any(LocalKeys(local_keys_directory(env), tls=tls).metadata(target) for target in address):
        return f"headrace up ({local_keys_directory(env)})"
    return f"the token of the pod ({POD_TOKEN})" if tls and POD_TOKEN.exists() else "none"


def read_key(file: Path) -> Secret:
    """
    The key that is in a file.

    Raises:
        InvalidConfig: it cannot be read, or holds no key. What it holds is not in the error.
    """
    try:
        with file.open("rb") as opened:
            text = opened.read(FILE_BYTES_MAX + 1).decode("ascii")
    except OSError as error:
        raise InvalidConfig(f"the file with the API key, {file}, cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise InvalidConfig(f"the file {file} is no text with an API key") from error
    return checked(Secret(text.strip()), str(file))


def checked(key: Secret, where: str) -> Secret:
    """``key``, which may be a token. Raises: InvalidConfig: it is neither, or was cut or mistyped."""
    from headrace_common.core.access.api_keys import parse_key

    if _TOKEN.fullmatch(key.reveal()):
        return key
    try:
        parse_key(key.reveal())
    except Rejected as error:
        raise InvalidConfig(f"{where}: {error}") from None
    return key


def _others_read(file: Path) -> bool:
    """Whether it is this user's own mistake: volumes of Kubernetes are another's, and their modes are usual."""
    try:
        at = os.stat(file)
    except OSError:
        return False
    return at.st_uid == os.geteuid() and bool(at.st_mode & stat.S_IROTH)


def _stamp(file: Path) -> tuple[int, ...] | None:
    """Another one: the file is another, or has other content. Links are followed, so a volume's swap is seen."""
    try:
        at = os.stat(file)
    except OSError:
        return None
    return at.st_dev, at.st_ino, at.st_mtime_ns, at.st_size

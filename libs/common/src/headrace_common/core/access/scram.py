"""
SCRAM (RFC 5802, RFC 7677): how somebody proves to have a password that nobody is told.

What is kept of a password is a ``Verifier`` for each mechanism; whoever sets it computes them. The messages are those
of the library scramp, which is imported when the first is used: that takes 0.1 s. What is decided here is what is
taken: the bounds, and that who is not known is answered as who is.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from headrace_common.core.errors import Rejected, Unauthenticated

if TYPE_CHECKING:
    from scramp.core import ScramClient, ScramServer

MECHANISMS: Final[Mapping[str, str]] = MappingProxyType({"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"})
"""Those that are taken, and the hash of each."""
DIGEST_BYTES: Final[Mapping[str, int]] = MappingProxyType({"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64})
DEFAULT_MECHANISM: Final = "SCRAM-SHA-512"
ITERATIONS: Final = 16_384
"""Of a password that is set by our clients."""
ITERATIONS_MIN: Final = 4_096
ITERATIONS_MAX: Final = 1_000_000
"""A client refuses more: who answers it could keep it busy for ever."""
SALT_BYTES: Final = 24
SALT_BYTES_MIN: Final = 12
SALT_BYTES_MAX: Final = 64
MESSAGE_BYTES_MAX: Final = 2_048
WRONG: Final = "the user name or the password is wrong"
"""All that is said of either."""


@dataclass(frozen=True, slots=True)
class Verifier:
    """What is kept of a password for one mechanism. Making one that cannot be raises ``Rejected``."""

    mechanism: str
    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __post_init__(self) -> None:
        size = DIGEST_BYTES.get(self.mechanism)
        if size is None:
            raise Rejected(f"{self.mechanism[:40]!r} is no mechanism that is taken; there are {', '.join(MECHANISMS)}")
        if not SALT_BYTES_MIN <= len(self.salt) <= SALT_BYTES_MAX:
            raise Rejected(f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes, not {len(self.salt)}")
        if not ITERATIONS_MIN <= self.iterations <= ITERATIONS_MAX:
            raise Rejected(f"a password is hashed {ITERATIONS_MIN} to {ITERATIONS_MAX} times, not {self.iterations}")
        if {len(self.stored_key), len(self.server_key)} != {size}:
            raise Rejected(f"the keys of {self.mechanism} have {size} bytes each")


def make_verifier(mechanism: str, password: str, salt: bytes, iterations: int = ITERATIONS) -> Verifier:
    """
    What is kept of ``password``; it takes 10 ms.

    Raises:
        Rejected: SCRAM has no form for it.
    """
    from scramp import ScramException, ScramMechanism

    try:
        made = ScramMechanism(mechanism).make_auth_info(password, iteration_count=iterations, salt=salt)
    except ScramException as error:
        raise Rejected(f"this password cannot be used: {error}") from None
    return Verifier(mechanism, made[0], made[3], made[1], made[2])


def check_user_name(name: str) -> None:
    """
    Check that who logs in as ``name`` is found by it: SCRAM writes names in a form of its own (SASLprep).

    Raises:
        Rejected: it has another form there, or none.
    """
    from scramp import ScramException
    from scramp.utils import saslprep

    try:
        prepared = saslprep(name)
    except ScramException as error:
        raise Rejected(f"nobody can log in as {name[:80]!r}: {error}") from None
    if prepared != name:
        raise Rejected(f"nobody can log in as {name[:80]!r}, which passwords (SASLprep) write {prepared[:80]!r}")


class ServerExchange:
    """
    One login, as a server sees it: ``first``, then ``last``. For somebody with two passwords either counts; they have
    one salt, for only one can be sent.
    """

    def __init__(self, mechanism: str, nonce: str, unknown: bytes) -> None:
        """
        Args:
            nonce: that nobody can guess, of printable characters without a comma.
            unknown: a secret of the cluster, by which who is not known has the same salt again and again.

        Raises:
            Unauthenticated: there is no such mechanism.
        """
        if mechanism not in MECHANISMS:
            raise Unauthenticated(
                f"passwords are taken by {' and '.join(MECHANISMS)}, not by {mechanism[:40]!r}; set sasl_mechanism"
            )
        self.mechanism = mechanism
        self.user: str | None = None
        """Who wants to be logged in, from ``first`` on."""
        self._nonce = nonce
        self._unknown = unknown
        self._servers: list[ScramServer] = []
        self._known = False

    def read_user(self, message: bytes) -> str:
        """
        The name that the client's first message has.

        Raises:
            Unauthenticated: it is no such message.
        """
        from scramp.core import ClientFirstBare

        text = _text(message)
        header, comma, bare = text.partition(",,")
        found = _asked(ClientFirstBare, bare) if comma else None
        if found is None or header not in {"n", "y"}:
            raise Unauthenticated(
                "this is no first message of SCRAM; bindings to a channel and other identities are not taken"
            )
        self.user = str(found["n"])
        return self.user

    def first(self, message: bytes, verifiers: Iterable[Verifier]) -> bytes:
        """
        The answer to the client's first message, whose user ``read_user`` has told.

        Args:
            verifiers: of that user's passwords, for this mechanism; none: nobody is called so, or has none.

        Raises:
            Unauthenticated: as ``read_user``.
        """
        assert self.user is not None, "its name was read"
        from scramp import ScramMechanism

        kept = [one for one in verifiers if one.mechanism == self.mechanism]
        self._known = bool(kept)
        answers = []
        for one in kept or [self._nobody(self.user)]:
            found = (one.salt, one.stored_key, one.server_key, one.iterations)
            server = ScramMechanism(self.mechanism).make_server(lambda _, found=found: found, s_nonce=self._nonce)
            _said(server.set_client_first, _text(message))
            answers.append(_said(server.get_server_first))
            self._servers.append(server)
        assert len(set(answers)) == 1, "all of its passwords have one salt"
        answer: str = answers[0]
        return answer.encode()

    def last(self, message: bytes) -> tuple[bytes, int]:
        """
        The answer to the client's last message, and by which of the verifiers it was right.

        Raises:
            Unauthenticated: it was right by none. It says the same whatever was wrong.
        """
        text = _text(message)
        for at, server in enumerate(self._servers):
            if _proves(server, text) and self._known:
                answer: str = _said(server.get_server_final)
                return answer.encode(), at
        raise Unauthenticated(WRONG)

    def _nobody(self, user: str) -> Verifier:
        """What is looked at where there is nobody: always the same, and no password is right by it."""
        size = DIGEST_BYTES[self.mechanism]

        def drawn(what: str, count: int) -> bytes:
            text = f"{self.mechanism} {what} {user}".encode()
            return hmac.digest(self._unknown, text, "sha512")[:count]

        return Verifier(
            self.mechanism, drawn("salt", SALT_BYTES), ITERATIONS, drawn("stored", size), drawn("server", size)
        )


class ClientExchange:
    """One login, as a client sees it: ``first``, ``last``, ``check``. It never sends the password."""

    def __init__(self, mechanism: str, user: str, password: str, nonce: str) -> None:
        """
        Raises:
            Rejected: SCRAM has no form for the name or the password.
        """
        from scramp import ScramClient, ScramException

        assert mechanism in MECHANISMS, "settings name one that is taken"
        self.mechanism = mechanism
        try:
            self._client: ScramClient = ScramClient([mechanism], user, password, c_nonce=nonce)
        except ScramException as error:
            raise Rejected(f"nobody can log in as {user[:80]!r} with this password: {error}") from None

    def first(self) -> bytes:
        """What is sent first."""
        said: str = self._client.get_client_first()
        return said.encode()

    def last(self, answer: bytes) -> bytes:
        """
        What is sent upon the server's first answer; it takes 10 ms, up to a second where the server wants many rounds.

        Raises:
            Unauthenticated: no server of this cluster answers so.
        """
        text = _text(answer)
        _said(self._client.set_server_first, text)
        rounds = int(self._client.iterations)
        if not ITERATIONS_MIN <= rounds <= ITERATIONS_MAX:
            raise Unauthenticated(
                f"the server wants the password hashed {rounds} times; {ITERATIONS_MIN} to {ITERATIONS_MAX} are taken"
            )
        said: str = _said(self._client.get_client_final)
        return said.encode()

    def check(self, answer: bytes) -> None:
        """
        Look whether the server knows the password's verifier too.

        Raises:
            Unauthenticated: it does not, so it is no server of this cluster.
        """
        _said(self._client.set_server_final, _text(answer))


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_BYTES_MAX:
        raise Unauthenticated(f"a message of SCRAM has at most {MESSAGE_BYTES_MAX} bytes, not {len(message)}")
    try:
        return message.decode()
    except ValueError:
        raise Unauthenticated("a message of SCRAM is text in UTF-8") from None


def _said(step: Any, *args: Any) -> Any:
    from scramp import ScramException

    try:
        return step(*args)
    except ScramException as error:
        raise Unauthenticated(f"the other side does not speak SCRAM as it should: {error}") from None


def _asked(step: Any, *args: Any) -> Any:
    from scramp import ScramException

    try:
        return step(*args)
    except ScramException:
        return None


def _proves(server: ScramServer, text: str) -> bool:
    from scramp import ScramException

    try:
        server.set_client_final(text)
    except ScramException:
        return False
    return True

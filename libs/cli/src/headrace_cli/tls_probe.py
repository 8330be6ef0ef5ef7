"""
Looks how one address speaks: by itself, with the TLS of Python, and without any credential. Blocks.

Three connections are made. One asks in plain text. One takes whatever certificate is shown, reads it, and says
something, for who demands a certificate of TLS 1.3 says so only then. One verifies, as a client does.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from headrace_cli.output import moment_for_people
from headrace_common.core.errors import NetworkFailed
from headrace_common.core.ids import Endpoint
from headrace_common.core.served_certificates import Certificate

TIMEOUT_S: Final = 5.0
_PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""What a client of gRPC begins with. A server of HTTP/1.1 refuses it, in words."""
_SETTINGS: Final = b"\x04\x00"
"""Kind and flags of the frame that a server of gRPC begins with, behind three bytes of its length."""
_READ_MAX: Final = 1 << 10
_DER: Final = 2


@dataclass(frozen=True, slots=True)
class Probe:
    """What an address has shown."""

    plain: bool
    """It answers plain text."""
    tls: str | None = None
    """Version and cipher; None: it does not speak TLS with us, and ``fault`` says why."""
    fault: str = ""
    chain: tuple[Certificate, ...] = ()
    """As it was shown; the first is the server's."""
    demands: bool | None = None
    """Whether it demands a certificate of who connects; None: that is not known."""
    verified: str | None = None
    """Empty: it verifies under the CAs and has the name; else why not. None: nobody has said which CAs."""


def probe(at: Endpoint, name: str, ca: Path | None) -> Probe:
    """
    Look.

    Args:
        name: that the certificate has to have.
        ca: the file with the CAs that are trusted; None: it is not verified.

    Raises:
        NetworkFailed: nobody takes connections there.
    """
    found = _look(at, replace(Probe(_answers_plainly(at)), verified=None))
    if found.tls is None or ca is None:
        return found
    return replace(found, verified=_verify(at, name, ca))


def clock_fault(certificate: Certificate, now_ms: int) -> str:
    """What is wrong with its time, by the clock of this machine; empty: nothing."""
    before, after = certificate.not_before_ms, certificate.not_after_ms
    if now_ms < before:
        return f"it is not valid before {moment_for_people(before)}; this machine says {moment_for_people(now_ms)}"
    if now_ms > after:
        return f"it is not valid after {moment_for_people(after)}; this machine says {moment_for_people(now_ms)}"
    return ""


@contextlib.contextmanager
def _connect(at: Endpoint) -> Iterator[socket.socket]:
    try:
        connection = socket.create_connection((at.host, at.port), timeout=TIMEOUT_S)
    except UnicodeError as error:
        raise NetworkFailed(f"{str(at)!r} takes no connections: no host can have that name") from error
    except OSError as error:
        raise NetworkFailed(f"{at} takes no connections: {error.strerror or error}") from error
    with connection:
        yield connection


def _answers_plainly(at: Endpoint) -> bool:
    """A server of TLS answers what is no TLS with an alert, or with nothing."""
    with _connect(at) as connection, contextlib.suppress(OSError):
        connection.sendall(_PREFACE)
        return _is_answer(connection.recv(_READ_MAX))
    return False


def _is_answer(text: bytes) -> bool:
    return text.startswith(b"HTTP/") or (text[3:5] == _SETTINGS and len(text) > 8)


def _look(at: Endpoint, found: Probe) -> Probe:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2", "http/1.1"])
    with _connect(at) as connection:
        try:
            secure = context.wrap_socket(connection, server_hostname=at.host)
        except OSError as error:
            return replace(found, fault="it speaks plain text alone" if found.plain else _say(error))
        with secure:
            cipher = secure.cipher()
            spoken = f"{secure.version()} {cipher[0] if cipher else ''}".strip()
            return replace(found, tls=spoken, chain=_chain_of(secure), demands=_demands(secure))


def _chain_of(secure: ssl.SSLSocket) -> tuple[Certificate, ...]:
    from cryptography import x509

    from headrace_common.runtime.tls import describe

    inner: Any = getattr(secure, "_sslobj", None)  # Python 3.13 has it without the underscore
    shown = [one.public_bytes(_DER) for one in inner.get_unverified_chain() or ()] if inner else []
    if not shown and (leaf := secure.getpeercert(binary_form=True)):
        shown = [leaf]
    return tuple(describe(x509.load_der_x509_certificate(one)) for one in shown)


def _demands(secure: ssl.SSLSocket) -> bool | None:
    """One who demands a certificate, and got none, answers nothing but that."""
    try:
        secure.sendall(_PREFACE)
        return not _is_answer(secure.recv(_READ_MAX))
    except TimeoutError:
        return None
    except OSError:  # an alert, or the connection broke
        return True


def _verify(at: Endpoint, name: str, ca: Path) -> str:
    from headrace_common.runtime.tls_contexts import make_client_context

    context = make_client_context(ca)
    with _connect(at) as connection:
        try:
            context.wrap_socket(connection, server_hostname=name).close()
        except ssl.SSLCertVerificationError as error:
            return f"{error.verify_message or _say(error)}"
        except OSError as error:
            return _say(error)
    return ""


def _say(error: OSError) -> str:
    if isinstance(error, ssl.SSLError) and error.reason:
        said = error.reason.replace("_", " ").lower()
        if "alert" in said:
            return f"it ended the handshake ({said}), as TLS 1.2 does where certificates are demanded of clients"
        return said
    return error.strerror or str(error) or "it closed the connection"

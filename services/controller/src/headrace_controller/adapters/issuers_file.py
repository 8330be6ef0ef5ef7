"""The issuers whose tokens are taken: those of a file, and Kubernetes. Read once, at start, by ``main``."""

from __future__ import annotations

from pathlib import Path

from headrace_common.core.errors import InvalidConfig
from headrace_controller.core.issuing import WantedIssuer, check_issuers, of_kubernetes, parse_issuers


def read_issuers(path: Path | None, kubernetes_audience: str | None) -> tuple[WantedIssuer, ...]:
    """
    All that are configured; see the settings ``oidc_issuers_file`` and ``kubernetes_audience``.

    Raises:
        InvalidConfig: the file cannot be read, or holds something else.
    """
    own = () if kubernetes_audience is None else (of_kubernetes(kubernetes_audience),)
    if path is None:
        return own
    try:
        wanted = (*parse_issuers(path.read_text("utf-8")), *own)
        check_issuers(wanted)
    except (OSError, UnicodeError) as error:
        raise InvalidConfig(f"oidc_issuers_file {path} cannot be read ({type(error).__name__})") from None
    except InvalidConfig as error:
        raise InvalidConfig(f"oidc_issuers_file {path}: {error}") from None
    return wanted

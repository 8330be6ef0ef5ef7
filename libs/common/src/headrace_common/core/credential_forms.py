"""
What credentials look like, so that they can be cut out of texts that others will read: the audit and bundles.

Names of settings are recognised by their sound. Keys and tokens are recognised by their form, wherever they stand.
"""

from __future__ import annotations

import re
from typing import Final

from headrace_common.core.access.api_keys import PREFIX
from headrace_common.core.secret import SHOWN

NODE_TOKEN_FORM: Final = r"hrn_[A-Za-z0-9_-]{43,128}"
_SECRET_NAME: Final = re.compile(r"(?i)passw|secret|token|credential|api.?key|private.?key|jaas|authorization")
_SEGMENT: Final = r"[A-Za-z0-9_-]"
_MARKS: Final = (PREFIX, "hrn_", "eyJ", "://", "-----BEGIN ")
"""One of these is in every text with a credential; to look for them is quick."""
_CREDENTIAL: Final = re.compile(
    rf"(?P<key>{PREFIX}[0-9A-Za-z]{{14}}_)[0-9A-Za-z]{{16,}}"  # the id is no secret, and says whose it is
    rf"|(?P<node>hrn_)[A-Za-z0-9_-]{{16,}}"
    rf"|(?P<token>eyJ)(?:(?!eyJ){_SEGMENT}){{0,512}}\.ey{_SEGMENT}{{8,8192}}\.{_SEGMENT}+"
    r"|(?P<user>://[^/\s:@]{0,255}:)[^/\s@]{1,1024}(?=@)"
    r"|-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    re.DOTALL,
)


def sounds_secret(name: str) -> bool:
    """Whether a setting of this name holds a secret, as far as a name can tell."""
    return _SECRET_NAME.search(name) is not None


def cut_credentials(text: str) -> str:
    """The text, with what logs in cut out of it: API keys, tokens of nodes and issuers, passwords of URLs, PEM keys."""
    if not any(mark in text for mark in _MARKS):
        return text
    return _CREDENTIAL.sub(lambda found: f"{found[found.lastgroup] if found.lastgroup else ''}{SHOWN}", text)

"""
Which passwords are taken. It is checked where one is typed, for it goes no further.

Only the commonest that are long enough are listed: shorter ones are refused for that.
"""

from __future__ import annotations

from typing import Final

from headrace_common.core.errors import Rejected

CHARS_MIN: Final = 12
CHARS_MAX: Final = 1_000
DIFFERENT_MIN: Final = 5
_RUNS: Final = (
    "abcdefghijklmnopqrstuvwxyz",
    "qwertyuiopasdfghjklzxcvbnm",
    "qwertzuiopasdfghjklyxcvbnm",
    "azertyuiopqsdfghjklmwxcvbn",
    "1qaz2wsx3edc4rfv5tgb6yhn7ujm",
    "1q2w3e4r5t6y7u8i9o0p",
    "01234567890123456789012345678901234567890",
)
"""And backwards, and again and again."""
_COMMON: Final = frozenset(
    {
        "administrator",
        "basketball12",
        "butterfly123",
        "changeme1234",
        "chocolate123",
        "correcthorse",
        "correcthorsebatterystaple",
        "football1234",
        "headrace1234",
        "iloveyou1234",
        "iloveyouforever",
        "letmein12345",
        "letmeinplease",
        "liverpool123",
        "manchesterunited",
        "masterpassword",
        "michaeljordan",
        "password1234",
        "password12345",
        "password123456",
        "passwordpassword",
        "passw0rd1234",
        "princess1234",
        "qwerty123456",
        "qwerty12345678",
        "secretpassword",
        "sunshine1234",
        "superman1234",
        "thisismypassword",
        "trustno1trustno1",
        "unbelievable",
        "welcome12345",
        "welcome123456",
        "abc123456789",
        "abcd12345678",
        "aa1234567890",
        "asdf12345678",
        "asdfasdfasdf",
        "qweasdzxc123",
        "qwertyuiop123",
        "zaq12wsxcde3",
        "zaq1zaq1zaq1",
    }
)


def check_password(password: str, user: str = "") -> None:
    """
    Raises:
        Rejected: it is too short, or among what is tried first. It is not in the error.
    """
    if not CHARS_MIN <= len(password) <= CHARS_MAX:
        raise Rejected(
            f"a password has {CHARS_MIN} characters or more, not {len(password)}; some words that you choose are good"
        )
    plain = password.lower()
    letters = plain.strip("0123456789!.?_-#$*@ ")
    common = plain in _COMMON or any(plain in run * 3 or plain in run[::-1] * 3 for run in _RUNS)
    if (
        common
        or len(set(plain)) < DIFFERENT_MIN
        or (letters and letters in {"password", "passwort", "headrace", user.lower()})
    ):
        raise Rejected("this password is among the first that are tried; choose another, for example some words")

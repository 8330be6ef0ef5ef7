"""A secret is shown to nobody, and works wherever it is taken."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import asdict, dataclass

import pytest

from headrace_common.core.secret import Secret

TEXT = "hrk_not-to-be-seen"


@dataclass(frozen=True, slots=True)
class Settings:
    key: Secret


def test_a_secret_shows_itself_nowhere() -> None:
    secret = Secret(TEXT)
    settings = Settings(secret)
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>10}", f"{secret!r}", "%s" % secret, repr(settings)]  # noqa: UP031
    assert not any(TEXT in text for text in [*shown, repr(asdict(settings)), str(ValueError(secret))])
    assert repr(settings) == "Settings(key=***)"
    with pytest.raises(TypeError):
        json.dumps({"key": secret})


def test_a_copy_and_a_pickle_hold_the_text() -> None:
    settings = Settings(Secret(TEXT))
    for twin in (copy.deepcopy(settings), pickle.loads(pickle.dumps(settings))):
        assert twin == settings
        assert twin.key.reveal() == TEXT


def test_secrets_are_the_same_by_their_text() -> None:
    assert Secret(TEXT) == Secret(TEXT)
    assert Secret(TEXT) != Secret("another")
    assert Secret(TEXT) != TEXT
    assert len({Secret(TEXT), Secret(TEXT)}) == 1

"""Which records a transform is for: TopicNameMatches, HasHeaderKey, RecordIsTombstone. And Filter, which drops them."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from headrace_connect.core.batch import HEADERS, TOPIC, VALUE, Batch
from headrace_connect.core.kinds import nulls_of
from headrace_connect.core.options import REQUIRED, Option
from headrace_connect.transforms.headers import has_header
from headrace_connect.transforms.patterns import Pattern
from headrace_connect.transforms.port import OfRecord, Settings


class TopicNameMatches:
    """Records whose topic matches a pattern as a whole."""

    options: ClassVar[tuple[Option, ...]] = (Option("pattern", "The pattern.", default=REQUIRED),)

    def __init__(self, settings: Settings) -> None:
        self._pattern = Pattern("pattern", settings["pattern"])

    def holds(self, batch: Batch) -> Any:
        """See ``Predicate``."""
        encoded = batch.column(TOPIC).dictionary_encode()
        return self._pattern.matches(encoded.dictionary).take(encoded.indices).to_numpy(zero_copy_only=False)


class HasHeaderKey:
    """Records with a header of this name."""

    options: ClassVar[tuple[Option, ...]] = (Option("name", "The header's name.", default=REQUIRED),)

    def __init__(self, settings: Settings) -> None:
        self._name = settings["name"]

    def holds(self, batch: Batch) -> Any:
        """See ``Predicate``."""
        return has_header(batch.column(HEADERS), self._name)


class RecordIsTombstone:
    """Records whose value is null."""

    options: ClassVar[tuple[Option, ...]] = ()

    def __init__(self, settings: Settings) -> None:
        pass

    def holds(self, batch: Batch) -> Any:
        """See ``Predicate``."""
        return nulls_of(batch.column(VALUE))


class Filter(OfRecord):
    """Drops every record; with a predicate, those that it chooses."""

    def apply(self, batch: Batch) -> Batch:
        """See ``Transform``."""
        return batch.filter(np.zeros(len(batch), bool))

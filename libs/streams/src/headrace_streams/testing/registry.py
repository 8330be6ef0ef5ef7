"""A schema registry in memory, for tests."""

from __future__ import annotations

from headrace_streams.core.errors import RegistryUnavailable
from headrace_streams.core.formats.framing import SchemaText


class MemoryRegistry:
    """
    Schemas by id and subject; satisfies ``Schemas``, and takes any version of a schema.

    ``Driver(app, registry=MemoryRegistry())`` asks it in place of the registries that the program names.
    """

    url = "memory"

    def __init__(self) -> None:
        self.subjects: dict[str, list[int]] = {}
        """The ids of each subject, in the order in which they were registered."""
        self.schemas: dict[int, SchemaText] = {}
        self.available = True
        """While it is False, nobody answers."""

    def by_id(self, schema_id: int) -> SchemaText | None:
        """See ``Schemas``."""
        self._answer()
        return self.schemas.get(schema_id)

    def latest(self, subject: str) -> SchemaText | None:
        """See ``Schemas``."""
        self._answer()
        return self.schemas[self.subjects[subject][-1]] if subject in self.subjects else None

    def register(self, subject: str, schema: SchemaText | str) -> int:
        """See ``Schemas``; text is a schema of Avro."""
        self._answer()
        if isinstance(schema, str):
            schema = SchemaText("AVRO", schema)
        schema_id = next((known for known, one in self.schemas.items() if one == schema), len(self.schemas) + 1)
        self.schemas[schema_id] = schema
        ids = self.subjects.setdefault(subject, [])
        if schema_id not in ids:
            ids.append(schema_id)
        return schema_id

    def find(self, subject: str, schema: SchemaText) -> int | None:
        """See ``Schemas``."""
        self._answer()
        return next((known for known in self.subjects.get(subject, ()) if self.schemas[known] == schema), None)

    def _answer(self) -> None:
        if not self.available:
            raise RegistryUnavailable("the schema registry in memory does not answer")

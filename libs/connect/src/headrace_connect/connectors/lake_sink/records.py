"""Small files of ours beside a lake's data: commits, tokens, schemas. Each is made once and never changed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Final
from urllib.parse import quote

import pyarrow as pa

from headrace.records import TopicPartition
from headrace_common.core.errors import InvalidConfig
from headrace_common.runtime.entropy import new_uuid
from headrace_connect.connectors.lake_sink.commits import VERSION, DataFile, Entry, Slot, last_slot, read_json
from headrace_connect.connectors.lake_sink.merges import NONE, Merged, last_merge, merge_name
from headrace_connect.connectors.places import Place
from headrace_connect.plugin import RetriableError

_OWN: Final = "_headrace"
_SCHEMAS: Final = "_schema"


class Records:
    """Of a lake of Parquet files."""

    def __init__(self, place: Place) -> None:
        self._place = place

    def probe(self) -> None:
        """
        Raises:
            InvalidConfig: of two objects with one name the place does not refuse the second.
            RetriableError: it may not be written.
        """
        name = f"{_OWN}/check-{new_uuid()}"
        try:
            if not self._place.create(name, b"1") or self._place.create(name, b"2"):
                raise InvalidConfig(
                    "the bucket's store does not refuse an object that is there already (If-None-Match), which commits "
                    "need; use one that does"
                )
        finally:
            self._place.delete(name)

    def has_any(self, directory: str) -> bool:
        """Whether there is a file in the directory."""
        return bool(self._place.list_directory(directory))

    # --- commits --------------------------------------------------------------------------------------------------

    def locate(self, partition: TopicPartition) -> tuple[int | None, Slot]:
        """The position, None: there is none; and where the next commit goes. What was undecided is decided."""
        directory = directory_of(partition)
        names = (name.rpartition("/")[2] for name in self._place.list_directory(directory))
        last = last_slot(names)
        if last is None:
            return None, Slot(0)
        self._place.sync(directory)
        entry = self.read_entry(f"{directory}/{last.name}")
        if entry.end is not None and (not entry.token or self.settle(entry.token)):
            return entry.end, Slot(entry.end)
        return last.first or None, last.again

    def find_position(self, partition: TopicPartition) -> int | None:
        """The position that counts now; what is undecided stays so."""
        directory = directory_of(partition)
        last = last_slot(name.rpartition("/")[2] for name in self._place.list_directory(directory))
        if last is None:
            return None
        entry = self.read_entry(f"{directory}/{last.name}")
        counts = entry.end is not None and (not entry.token or bool(self.verdict(entry.token)))
        return entry.end if counts else last.first or None

    def read_entry(self, name: str) -> Entry:
        """The commit of this name, which counts or not."""
        return Entry.from_bytes(self._read(name), name)

    def entries(self, partition: TopicPartition) -> Iterator[tuple[str, Slot, Entry]]:
        """Commits that count, with the names of their files."""
        directory = directory_of(partition)
        for name in self._place.list_directory(directory):
            slot = Slot.parse(name.rpartition("/")[2])
            if slot is None:
                continue
            entry = self.read_entry(f"{directory}/{slot.name}")
            if entry.end is not None and (not entry.token or self.verdict(entry.token)):
                yield f"{directory}/{slot.name}", slot, entry

    def change(self, name: str, entry: Entry) -> None:
        """Have a commit count other files, with the same end."""
        self._place.write(name, entry.to_bytes())

    def take(self, partition: TopicPartition, slot: Slot, entry: Entry) -> bool:
        """Commit; False: another commit is there."""
        return self._place.create(f"{directory_of(partition)}/{slot.name}", entry.to_bytes())

    # --- what counts ----------------------------------------------------------------------------------------------

    def merged(self, directory: str, names: Sequence[str]) -> tuple[int, Merged]:
        """The newest merge of a partition, and its number; 0: there is none. ``names``: in its directory."""
        number = last_merge(names)
        return number, self.read_merge(directory, number) if number else NONE

    def read_merge(self, directory: str, number: int) -> Merged:
        """The merge of this number, which was listed."""
        name = f"{directory}/{merge_name(number)}"
        return Merged.from_bytes(self._read(name), name)

    def take_merge(self, directory: str, number: int, merged: Merged) -> bool:
        """Have the merge count; False: there is one of this number."""
        return self._place.create(f"{directory}/{merge_name(number)}", merged.to_bytes())

    def counted(self, directory: str, slots: Iterable[Slot]) -> Iterator[DataFile]:
        """Of these commits, the files that count."""
        for slot in slots:
            entry = self.read_entry(f"{directory}/{slot.name}")
            if entry.end is not None and (not entry.token or self.verdict(entry.token)):
                yield from entry.files

    # --- tokens ---------------------------------------------------------------------------------------------------

    def use(self, token: str) -> bool:
        """Whether the token is used now; False: it was given up."""
        return self._decide(token, done=True)

    def settle(self, token: str) -> bool:
        """Whether the token was used; if not, it never will be."""
        return self._decide(token, done=False)

    def verdict(self, token: str) -> bool | None:
        """Whether the token was used; None: that is not decided, and stays so."""
        name = _token_file(token)
        if self._place.open(name) is None:
            return None
        return bool(read_json(self._read(name), name).get("done"))

    def _decide(self, token: str, *, done: bool) -> bool:
        name = _token_file(token)
        verdict = {"version": VERSION, "done": done, "id": new_uuid()}
        if self._place.create(name, json.dumps(verdict).encode()):
            return done
        found = read_json(self._read(name), name)
        return bool(found.get("done"))

    # --- schemas --------------------------------------------------------------------------------------------------

    def schema(self, table: str) -> tuple[int, pa.Schema | None]:
        """The newest schema of a table, and its number; 0, None: there is none."""
        names = self._place.list_directory(f"{encode(table)}/{_SCHEMAS}")
        numbers = [int(stem) for name in names if (stem := name.rpartition("/")[2].removesuffix(".json")).isdigit()]
        if not numbers:
            return 0, None
        number = max(numbers)
        name = _schema_name(table, number)
        stored = read_json(self._read(name), name)
        try:
            return number, pa.ipc.read_schema(pa.py_buffer(base64.b64decode(stored["arrow"])))
        except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
            raise InvalidConfig(f"{name} is damaged: {error!r}; restore it, or write to another path") from error

    def add_schema(self, table: str, number: int, schema: pa.Schema) -> bool:
        """Make the schema with this number; False: there is one."""
        stored = {
            "version": VERSION,
            "id": new_uuid(),
            "columns": {field.name: str(field.type) for field in schema},
            "arrow": base64.b64encode(schema.serialize().to_pybytes()).decode(),
        }
        return self._place.create(_schema_name(table, number), json.dumps(stored, indent=1).encode())

    def _read(self, name: str) -> bytes:
        file = self._place.open(name)
        if file is None:
            raise RetriableError(f"{name} was there, and is not there any more")
        with file:
            return file.read_at(0, file.seen.size)


def token_name(token: bytes) -> str:
    """Of a token, whatever is in it."""
    return sha256(token).hexdigest()


def directory_of(partition: TopicPartition) -> str:
    """Where a partition's commits are."""
    return f"{encode(partition.topic)}/{partition.partition}"


def encode(name: str) -> str:
    """As the name of a directory, which readers of lakes do not skip, and which leads nowhere else."""
    quoted = quote(name, safe="")
    return f"%{ord(quoted[0]):02X}{quoted[1:]}" if quoted[:1] in ("_", ".") else quoted


def _token_file(token: str) -> str:
    return f"{_OWN}/tokens/{token}.json"


def _schema_name(table: str, number: int) -> str:
    return f"{encode(table)}/{_SCHEMAS}/{number:010}.json"

"""
Extracts what ``proto/`` says of the messages that REST answers, for its OpenAPI document. With ``--check``: fails if
the committed file differs.

Generated code has no comments, so they are a file of their own, by ``Message``, ``Message.field``, ``Enum.VALUE``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import grpc_tools
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

ROOT: Final = Path(__file__).parents[1]
COMMENTS: Final = ROOT / "services/admin/src/headrace_admin/rpc/proto_comments.json"
SERVICE: Final = "Admin"


def main() -> int:
    """Write the comments, or compare them."""
    text = json.dumps(comments(_descriptors()), indent=1, ensure_ascii=False) + "\n"
    if "--check" not in sys.argv:
        COMMENTS.write_text(text, "utf-8")
    elif not COMMENTS.exists() or COMMENTS.read_text("utf-8") != text:
        print(
            f"{COMMENTS.relative_to(ROOT)} differs from proto/. Run 'make proto' and commit the result.",
            file=sys.stderr,
        )
        return 1
    return 0


def _descriptors() -> FileDescriptorSet:
    with tempfile.NamedTemporaryFile() as out:
        files = sorted(map(str, (ROOT / "proto/headrace_proto/v1").glob("*.proto")))
        places = (ROOT / "proto", Path(grpc_tools.__file__).parent / "_proto")
        options = ["--include_source_info", *(f"-I{place}" for place in places), f"--descriptor_set_out={out.name}"]
        assert protoc.main(["protoc", *options, *files]) == 0, "protoc said why"
        return FileDescriptorSet.FromString(Path(out.name).read_bytes())


def comments(files: FileDescriptorSet) -> dict[str, str]:
    """The comments of everything that answers of the service hold, by name."""
    kinds = {
        f".{file.package}.{kind.name}": kind for file in files.file for kind in (*file.message_type, *file.enum_type)
    }
    (service,) = (s for file in files.file for s in file.service if s.name == SERVICE)
    told = {kind.name for kind in _held(kinds, [m.output_type for m in service.method])}
    found = {name: text for file in files.file for name, text in _comments_of(file) if name.split(".")[0] in told}
    return dict(sorted(found.items()))


def _held(
    kinds: dict[str, DescriptorProto | EnumDescriptorProto], names: list[str]
) -> list[DescriptorProto | EnumDescriptorProto]:
    seen: dict[str, DescriptorProto | EnumDescriptorProto] = {}
    while names:
        name = names.pop()
        if name in kinds and name not in seen:
            kind = seen[name] = kinds[name]
            names += [f.type_name for f in kind.field] if isinstance(kind, DescriptorProto) else []
    return list(seen.values())


def _comments_of(file: FileDescriptorProto) -> Iterator[tuple[str, str]]:
    for location in file.source_code_info.location:
        text = " ".join((location.leading_comments or location.trailing_comments).split())
        name = _name(file, list(location.path))
        if text and name is not None:
            yield name, text


def _name(file: FileDescriptorProto, path: list[int]) -> str | None:
    """What stands at ``path``, which has the numbers of fields of descriptor.proto: 4 messages, 5 enums, 2 inside."""
    match path:
        case [4, at]:
            return file.message_type[at].name
        case [5, at]:
            return file.enum_type[at].name
        case [4, at, 2, inner]:
            return f"{file.message_type[at].name}.{file.message_type[at].field[inner].name}"
        case [5, at, 2, inner]:
            return f"{file.enum_type[at].name}.{file.enum_type[at].value[inner].name}"
    return None


if __name__ == "__main__":
    sys.exit(main())

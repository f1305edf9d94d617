"""Compiling .proto texts with the compiler that grpcio-tools brings: none is needed on the machine.

Rules
- Texts in, descriptors out; the files that the compiler wants live in a directory of this call's own.
- Google's well-known types can be imported without being given.
- What the compiler says is told with the line of the text, in the words of its first message.
"""

from __future__ import annotations

import base64
import binascii
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

_TIMEOUT = 60
_SAID = re.compile(r"^(?P<file>[^:\n]+):(?:(?P<line>\d+):\d+: )?(?P<what>.+)$", re.MULTILINE)


class ProtoError(Exception):
    """What is wrong with a text, and in which line."""

    def __init__(self, reason: str, line: int | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.line = line


@dataclass(frozen=True)
class Compiled:
    """The descriptors of a text and of all that it imports; the text's own is the last."""

    files: FileDescriptorSet

    @property
    def encoded(self) -> str:
        return base64.b64encode(self.files.SerializeToString(deterministic=True)).decode()


def compiled(text: str, name: str, imports: Mapping[str, str]) -> Compiled:
    """The descriptors of a text; `imports` are the texts that it imports by their names. Raises ProtoError.

    A registry may also give descriptors in base64 in the place of texts, as some producers register them.
    """
    given = {each: _descriptor(content) for each, content in {**imports, name: text}.items()}
    if any(found is not None for found in given.values()):
        return _joined(text, name, imports, given)
    return _run(text, name, imports)


def _run(text: str, name: str, imports: Mapping[str, str]) -> Compiled:
    with tempfile.TemporaryDirectory(prefix="penstock-proto-") as scratch:
        folder = Path(scratch) / "in"
        for each, content in {**imports, name: text}.items():
            file = folder / _safe(each)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        out = Path(scratch) / "out.pb"
        known = str(resources.files("grpc_tools") / "_proto")
        # A process of its own: protoc writes its messages to the process's standard error.
        command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{folder}", f"-I{known}", "--include_imports",
                   f"--descriptor_set_out={out}", str(folder / _safe(name))]  # fmt: skip
        try:
            ran = subprocess.run(
                command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, timeout=_TIMEOUT
            )
        except subprocess.TimeoutExpired:
            raise ProtoError("it could not be compiled in time") from None
        if ran.returncode != 0:
            raise _said(ran.stderr, name)
        return Compiled(FileDescriptorSet.FromString(out.read_bytes()))


def _joined(
    text: str, name: str, imports: Mapping[str, str], given: Mapping[str, FileDescriptorProto | None]
) -> Compiled:
    """Of descriptors, and perhaps texts among them; well-known types are added where they are imported."""
    found: dict[str, FileDescriptorProto] = {}

    def add(each: str, proto: FileDescriptorProto | None) -> None:
        if each in found:
            return
        if proto is None:
            content = {**imports, name: text}.get(each)
            compiled_set = _run(content, each, imports) if content is not None else _well_known(each)
            for file in compiled_set.files.file:
                found.setdefault(file.name, file)
            return
        proto.name = each
        for dependency in proto.dependency:
            add(dependency, given.get(dependency))
        found[each] = proto

    add(name, given[name])
    return Compiled(FileDescriptorSet(file=found.values()))


def _well_known(name: str) -> Compiled:
    return _run(f'syntax = "proto3"; import public "{name}";', "penstock_import.proto", {})


def _descriptor(text: str) -> FileDescriptorProto | None:
    """The descriptor that a text is in base64; None if it is a .proto text."""
    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text.strip(), validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    return found if found.message_type or found.enum_type or found.dependency else None


def _said(output: str, name: str) -> ProtoError:
    for found in _SAID.finditer(output):
        what = found["what"].strip().rstrip(".")
        if not found["file"].endswith((".proto", name)) or what.lower().startswith("warning"):
            continue
        line = int(found["line"]) if found["line"] else None
        if not found["file"].endswith(name):
            what, line = f"{found['file']}: {what}", None  # of a file that it imports
        return ProtoError(what, line)
    return ProtoError((output.strip() or "the compiler gave no reason").splitlines()[0].rstrip("."))


def _safe(name: str) -> str:
    """A name as a path below the directory, and nowhere else."""
    parts = [part for part in PurePosixPath(name).parts if part not in ("/", "..", ".")]
    return "/".join(parts) or "schema.proto"

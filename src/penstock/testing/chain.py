"""What a test runs: the streams between its inputs and the models it looks at, in their order. Pure.

Rules
- A dynamic table or source table is a stream, unless the test gives its rows: then it is a table that the test writes.
- A seed has the rows of its file, unless the test gives others. Any other model is a view over what it reads, whatever
  it is made of in the project.
- Of a table that the test writes, what is above it is needed for its columns alone, and is not started.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from penstock.compiler import StreamSpec, compile_model, compile_source, compile_source_table, sources_of
from penstock.compiler.functions import called
from penstock.compiler.spec import KafkaInput
from penstock.errors import Location, did_you_mean
from penstock.errors.catalogue import STREAM_TEST_NAME
from penstock.project.model import is_dynamic_table
from penstock.project.source import is_source_table, is_stream, relation_of
from penstock.testing.cases import Case

Manifest = Mapping[str, Any]
Kind = Literal["stream", "fed", "shape", "seed", "given", "view"]

_CALL = re.compile(r"^\s*(ref|source)\(\s*(.+?)\s*\)\s*$")


@dataclass(frozen=True)
class Part:
    """A relation of a test."""

    unique_id: str
    kind: Kind
    relation: str
    spec: StreamSpec | None = None  # of stream, fed and shape

    @property
    def runs(self) -> bool:
        return self.kind == "stream"


class Project:
    """The names of a manifest."""

    def __init__(self, manifest: Manifest, folder: Path) -> None:
        self.manifest = manifest
        self.folder = folder
        self.nodes: Mapping[str, Mapping[str, Any]] = manifest.get("nodes") or {}
        self.sources: Mapping[str, Mapping[str, Any]] = manifest.get("sources") or {}
        self._specs: dict[str, StreamSpec] = {}
        self._topics: dict[str, KafkaInput] = {}
        self._names: dict[str, list[str]] = {}
        for unique_id, entry in self.sources.items():
            self._name(unique_id, f"{entry['source_name']}.{entry['name']}", relation_of(entry), str(entry["name"]))
        for unique_id, node in self.nodes.items():
            if node.get("resource_type") in ("model", "seed", "snapshot"):
                self._name(unique_id, str(node["name"]), relation_of(node))

    def _name(self, unique_id: str, *names: str) -> None:
        for name in {each.lower() for each in names}:
            self._names.setdefault(name, []).append(unique_id)

    def find(self, name: str, at: Location) -> str:
        """dbt's id of a model, seed or source, as a test names it."""
        plain = name
        call = _CALL.match(name)
        if call is not None:
            plain = ".".join(part.strip().strip("'\"") for part in call.group(2).split(","))
        found = self._names.get(plain.lower(), [])
        if call is not None:
            found = [each for each in found if each.startswith("source.") == (call.group(1) == "source")]
        elif "." not in plain:  # a source is known by its name alone only where no model has it
            found = [each for each in found if each not in self.sources] or found
        if len(found) == 1:
            return found[0]
        if found:
            raise STREAM_TEST_NAME.error(
                f"'{name}' may be {' or '.join(sorted(found))}.", at=at, hint="Write ref('…') or source('…', '…')."
            )
        raise STREAM_TEST_NAME.error(f"the project has no '{name}'.", at=at, hint=did_you_mean(plain, self._names))

    def entry(self, unique_id: str) -> Mapping[str, Any]:
        return self.sources.get(unique_id) or self.nodes[unique_id]

    def is_streaming(self, unique_id: str) -> bool:
        """Whether the relation is kept by a stream."""
        entry = self.entry(unique_id)
        return is_source_table(entry) if unique_id in self.sources else is_dynamic_table(entry)

    def is_topic(self, unique_id: str) -> bool:
        return unique_id in self.sources and is_stream(self.sources[unique_id])

    def spec(self, unique_id: str) -> StreamSpec:
        """The relation's stream, compiled."""
        if unique_id not in self._specs:
            if unique_id in self.sources:
                self._specs[unique_id] = compile_source_table(self.sources[unique_id], project_dir=self.folder)
            else:
                self._specs[unique_id] = compile_model(self.manifest, unique_id, project_dir=self.folder)
        return self._specs[unique_id]

    def topic(self, unique_id: str) -> KafkaInput:
        """A source, as streams read it."""
        if unique_id not in self._topics:
            self._topics[unique_id] = compile_source(self.sources[unique_id], project_dir=self.folder)
        return self._topics[unique_id]

    def changed(self, unique_id: str, sql: str, config: Mapping[str, Any], raw: str) -> StreamSpec:
        """A dynamic table with other SQL and other settings."""
        node = dict(self.nodes[unique_id])
        node |= {"compiled_code": sql, "raw_code": raw, "config": {**node["config"], **config}}
        node["unrendered_config"] = {**(node.get("unrendered_config") or {}), **config}  # what the model says itself
        nodes = {**self.nodes, unique_id: node}
        return compile_model({**self.manifest, "nodes": nodes}, unique_id, project_dir=self.folder)

    def functions(self, unique_ids: Collection[str]) -> list[Mapping[str, Any]]:
        """The functions of the project that these models call, each after those that it calls itself."""
        return called(self.manifest, unique_ids)

    def above(self, unique_id: str) -> list[str]:
        return [str(each["unique_id"]) for each in sources_of(self.manifest, unique_id)]


def parts(project: Project, case: Case) -> list[Part]:
    """What the test runs, upstream first."""
    wanted = [project.find(name, case.at()) for name in case.test.model]
    given = {project.find(name, case.at()) for name in case.test.given}
    fed: set[str] = set()
    for number, step in enumerate(case.test.steps):
        for name in step.input or ():
            unique_id = project.find(name, case.at(number))
            if not project.is_topic(unique_id):
                fed.add(unique_id)
        if isinstance(step.expect, dict):
            wanted += [project.find(name, case.at(number)) for name in step.expect]
    return list(_Chain(project, given, fed).all(wanted))


class _Chain:
    def __init__(self, project: Project, given: Collection[str], fed: Collection[str]) -> None:
        self.project = project
        self.given = given
        self.fed = fed
        self.found: dict[str, Part] = {}

    def all(self, wanted: Collection[str]) -> Iterator[Part]:
        for unique_id in wanted:
            self.visit(unique_id, started=True)
        for unique_id in self.given:
            self.visit(unique_id, started=True)
        return iter(self.found.values())

    def visit(self, unique_id: str, *, started: bool) -> None:
        known = self.found.get(unique_id)
        if known is not None and (known.kind != "shape" or not started):
            return
        streaming, written = self.project.is_streaming(unique_id), unique_id in self.fed or unique_id in self.given
        if self.project.is_topic(unique_id) and not streaming:
            return  # it is read as it comes
        if written and not streaming:
            self._add(unique_id, "given")
            return
        entry = self.project.entry(unique_id)
        if entry.get("resource_type") == "seed":
            self._add(unique_id, "seed")
            return
        for above in self.project.above(unique_id):
            if above != unique_id:
                self.visit(above, started=started and not written)
        kind: Kind = "view"
        if streaming:
            kind = "fed" if written else "stream" if started else "shape"
        self._add(unique_id, kind)

    def _add(self, unique_id: str, kind: Kind) -> None:
        spec = self.project.spec(unique_id) if kind in ("stream", "fed", "shape") else None
        self.found.pop(unique_id, None)
        self.found[unique_id] = Part(unique_id, kind, relation_of(self.project.entry(unique_id)), spec)

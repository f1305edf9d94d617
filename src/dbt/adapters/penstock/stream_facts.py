"""What `dbt docs` shows of a stream: what kind of relation it is, how its rows change, their key, what it reads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.compiler import StreamSpec
    from penstock.store import Store

Facts = tuple[str | None, dict[str, Any]]  # type of the relation, dbt's columns `stats:…`
_ROWS = {
    "append": "appended",
    "upsert": "replaced by their key",
    "complete": "one, replaced",
    "replace": "all replaced",
}
_LABELS = {
    "rows": ("Rows", "How the rows of the table change."),
    "key": ("Key", "The columns by which rows are replaced."),
    "refresh": ("Refresh", "Incremental: by new rows alone. Full: computed anew when an input changed."),
    "reads": ("Reads", "What the stream reads."),
    "topic": ("Topic", "The Kafka topic, or the pattern of topics."),
    "format": ("Format", "How key and value of a message are read."),
    "generation": ("Generation", "How often the stream was deployed with a change."),
}


class StreamFacts:
    """The facts of a project's relations (schema.identifier)."""

    def __init__(self, manifest: Any, store: Store, project: Path) -> None:
        self._store, self._project = store, project
        entries = [source.to_dict(omit_none=False) for source in getattr(manifest, "sources", {}).values()]
        self._sources = {f"{each['schema']}.{each['identifier']}".lower(): each for each in entries}

    def of(self, relation: str) -> Facts:
        """Nothing for a relation that is no stream's."""
        source = self._sources.get(relation.lower())
        return self._of_source(source) if source is not None else self._of_table(relation)

    def _of_source(self, entry: Mapping[str, Any]) -> Facts:
        from penstock.project.source import is_stream, read_source

        if not is_stream(entry):
            return None, {}
        try:
            source = read_source(entry, self._project)
        except PenstockError:
            return None, {}  # it is told where the source is read
        facts = {
            "topic": source.topic or source.topic_pattern,
            "format": f"key {source.key.format}, value {source.value.format}",
            "key": ", ".join(source.primary_key),
            "rows": _ROWS["upsert"] if source.is_table else _ROWS["append"],
        }
        return ("source table" if source.is_table else "source stream"), stats(facts)

    def _of_table(self, relation: str) -> Facts:
        from pydantic import ValidationError

        from penstock.compiler import StreamSpec

        want = self._store.find_desired(relation)
        if want is None:
            return None, {}
        try:
            spec = StreamSpec.from_json(want.spec_json)
        except ValidationError:  # of another version of Penstock
            return "dynamic table", stats({"generation": want.generation})
        return "dynamic table", stats(_of_spec(spec) | {"generation": want.generation})


def _of_spec(spec: StreamSpec) -> dict[str, Any]:
    return {
        "rows": _ROWS.get(spec.output.mode.value, spec.output.mode.value),
        "key": ", ".join(spec.output.keys),
        "refresh": "full" if spec.output.mode.value == "replace" else "incremental",
        "reads": ", ".join(sorted(each.relation for each in spec.inputs)),
    }


def stats(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts in the form of dbt's catalog; one that is empty is left out."""
    made: dict[str, Any] = {}
    for name, value in facts.items():
        if value:
            label, description = _LABELS[name]
            place = f"stats:{name}"
            made |= {f"{place}:label": label, f"{place}:value": value, f"{place}:description": description,
                     f"{place}:include": True}  # fmt: skip
    return made

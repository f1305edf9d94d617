"""A small project in tests: sources and models as dbt's manifest would hand them to the compiler."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from penstock.compiler import StreamSpec, compile_project


class Project:
    """`{name}` in a model's SQL is a source, a table or another model of the project."""

    def __init__(self, schema: str) -> None:
        self.schema = schema
        self._nodes: dict[str, dict[str, Any]] = {}
        self._sources: dict[str, dict[str, Any]] = {}
        self._relations: dict[str, tuple[str, str]] = {}  # name -> unique id, relation

    def source(
        self, name: str, topic: str, columns: dict[str, str], watermark: dict[str, str] | None = None, **more: Any
    ) -> None:
        """A topic of JSON; a column is a type, or `type from origin`. `more` are further settings of the stream."""
        stream: dict[str, Any] = {"topic": topic, "value": {"format": "json"}, **more}
        if watermark is not None:
            stream["watermark"] = watermark
        unique_id = f"source.test.raw.{name}"
        self._sources[unique_id] = {
            "unique_id": unique_id, "resource_type": "source", "source_name": "raw", "name": name, "identifier": name,
            "schema": f"{self.schema}_raw", "original_file_path": "sources/raw.yml", "source_meta": {},
            "meta": {"stream": stream}, "config": {"meta": {"stream": stream}},
            "columns": {column: _column(column, kind) for column, kind in columns.items()},
        }  # fmt: skip
        self._relations[name] = (unique_id, f"{self.schema}_raw.{name}")

    def table(self, name: str) -> str:
        """A table that dbt makes; its relation."""
        unique_id, relation = f"seed.test.{name}", f"{self.schema}.{name}"
        self._nodes[unique_id] = {
            "unique_id": unique_id, "resource_type": "seed", "name": name, "alias": name, "schema": self.schema,
            "config": {"materialized": "seed"},
        }  # fmt: skip
        self._relations[name] = (unique_id, relation)
        return relation

    def model(self, name: str, sql: str, **config: Any) -> str:
        """A dynamic table; its relation."""
        names = dict.fromkeys(re.findall(r"\{(\w+)\}", sql))
        compiled = sql.format(**{each: self._relations[each][1] for each in names})
        unique_id, relation = f"model.test.{name}", f"{self.schema}.{name}"
        self._nodes[unique_id] = {
            "unique_id": unique_id, "resource_type": "model", "language": "sql", "name": name, "alias": name,
            "schema": self.schema, "original_file_path": f"models/{name}.sql", "raw_code": compiled,
            "compiled_code": compiled, "config": {"materialized": "dynamic_table", **config},
            "unrendered_config": config,
            "depends_on": {"nodes": [self._relations[each][0] for each in names]},
        }  # fmt: skip
        self._relations[name] = (unique_id, relation)
        return relation

    def specs(self) -> dict[str, StreamSpec]:
        """Name -> spec of each model, upstream first."""
        manifest = {"nodes": self._nodes, "sources": self._sources}
        specs = compile_project(manifest, project_dir=Path("nowhere"))
        return {spec.name.rpartition(".")[2]: spec for spec in specs}


def _column(name: str, kind: str) -> dict[str, Any]:
    data_type, _, origin = kind.partition(" from ")
    meta = {"stream": {"from": origin}} if origin else {}
    return {"name": name, "data_type": data_type, "meta": meta, "config": {"meta": meta}}

"""Source files in tests: YAML, read as dbt's manifest would hand it to the compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from penstock.compiler import StreamSpec, compile_model
from penstock.project.source import StreamSource, read_source

FILE = "sources/shop.yml"


def manifest_entry(source: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """A source table as dbt 1.11 writes it."""

    def meta(holder: dict[str, Any]) -> dict[str, Any]:
        return (holder.get("config") or {}).get("meta") or holder.get("meta") or {}

    return {
        "unique_id": f"source.shop.{source['name']}.{table['name']}",
        "resource_type": "source",
        "source_name": source["name"],
        "name": table["name"],
        "identifier": table.get("identifier", table["name"]),
        "schema": source["name"],
        "original_file_path": FILE,
        "source_meta": meta(source),
        "meta": {**meta(source), **meta(table)},
        "config": {"meta": {**meta(source), **meta(table)}},
        "columns": {
            column["name"]: {**column, "meta": meta(column), "config": {"meta": meta(column)}}
            for column in table.get("columns") or ()
        },
    }


def entries(text: str, project: Path) -> list[dict[str, Any]]:
    """The manifest's entries of every table of a file that is written into the project."""
    (project / "sources").mkdir(exist_ok=True)
    (project / FILE).write_text(text)
    found = [manifest_entry(source, table) for source in yaml.safe_load(text)["sources"] for table in source["tables"]]
    return [json.loads(json.dumps(entry, default=str)) for entry in found]  # keys and times are text in a manifest


def read_all(text: str, project: Path) -> list[StreamSource]:
    return [read_source(entry, project) for entry in entries(text, project)]


def compiled(
    text: str, project: Path, *, name: str = "shop.m", sql: str = "select * from shop.clicks", **config: Any
) -> StreamSpec:
    """A model over the first table of a file."""
    source = entries(text, project)[0]
    schema, _, identifier = name.partition(".")
    model = {
        "unique_id": "model.shop.m", "resource_type": "model", "name": "m", "alias": identifier, "schema": schema,
        "original_file_path": "models/m.sql", "raw_code": sql, "compiled_code": sql,
        "config": {"materialized": "dynamic_table", **config}, "depends_on": {"nodes": [source["unique_id"]]},
    }  # fmt: skip
    manifest = {"nodes": {"model.shop.m": model}, "sources": {source["unique_id"]: source}}
    return compile_model(manifest, "model.shop.m", project_dir=project)


def table(stream: str, *columns: str) -> str:
    """A file with one table `shop.clicks`: its settings in one line, and lines of columns from line 7 on."""
    lines = [
        "sources:",
        "  - name: shop",
        "    tables:",
        "      - name: clicks",
        f"        config: {{meta: {{stream: {stream}}}}}",
        "        columns:",
        *(f"          - {column}" for column in columns or ("{name: a, data_type: string}",)),
    ]
    return "\n".join(lines) + "\n"


def column(name: str, kind: str, **stream: str) -> str:
    settings = f", config: {{meta: {{stream: {json.dumps(stream)}}}}}" if stream else ""
    return f'{{name: {name}, data_type: "{kind}"{settings}}}'

"""The JSON Schema of dbt's source files, for editors, from the models that validate them.

Rules
- Only what stands below `stream` is strict; the rest of a file is dbt's, and other keys are let through.
- A setting below a source is the default of its tables, so nothing is required there or here.
"""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from penstock.project.settings import ColumnSettings, StreamSettings

_TEMPLATE = "#/$defs/{model}"


def source_file_schema() -> dict[str, Any]:
    """A schema that VS Code's YAML extension and others take."""
    _, found = models_json_schema(
        [(StreamSettings, "validation"), (ColumnSettings, "validation")], by_alias=True, ref_template=_TEMPLATE
    )
    defs: dict[str, Any] = _tidy(found["$defs"])
    defs["StreamSettings"]["patternProperties"] = {
        r"^kafka\..+": {
            "description": "Any option of Kafka's consumer; a secret as {env_var: NAME} or {file: PATH}.",
            "anyOf": [{"type": ["string", "number", "boolean"]}, {"$ref": "#/$defs/Reference"}],
        }
    }
    stream, column = _holder("StreamSettings"), _holder("ColumnSettings")
    columns = _list_of({"name": _text("Name of the column."), "data_type": _text("A Spark SQL type."), **column})
    table = {"name": _text("Name of the source table."), **stream, "columns": columns}
    source = {"name": _text("Name of the source."), **stream, "tables": _list_of(table)}
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Sources of a Penstock project",
        "type": "object",
        "properties": {"sources": _list_of(source)},
        "$defs": defs,
    }


def _holder(model: str) -> dict[str, Any]:
    meta = {"type": "object", "properties": {"stream": {"$ref": f"#/$defs/{model}"}}}
    return {"config": {"type": "object", "properties": {"meta": meta}}, "meta": meta}


def _tidy(node: Any) -> Any:
    """Without what only clutters an editor's list: titles, nulls, and choices of one."""
    if isinstance(node, list):
        return [_tidy(each) for each in node]
    if not isinstance(node, dict):
        return node
    kept = {
        key: _tidy(value)
        for key, value in node.items()
        if not (key == "title" and isinstance(value, str)) and not (key == "default" and value is None)
    }
    choices = [each for each in kept.get("anyOf", ()) if each != {"type": "null"}]
    if len(choices) == 1:
        return {key: value for key, value in kept.items() if key != "anyOf"} | choices[0]
    return kept | ({"anyOf": choices} if choices else {})


def _list_of(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": {"type": "object", "properties": properties, "required": ["name"]}}


def _text(about: str) -> dict[str, Any]:
    return {"type": "string", "description": about}

"""The SQL of a model that dbt has not compiled yet, well enough to see its shape.

Rules
- `ref` and `source` become the relation's name; an ephemeral model becomes a subquery.
- `config`, macros and variables that are not known become nothing; `is_incremental()` is false.
- A text that Jinja cannot render is returned with its tags taken out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jinja2 import ChainableUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from penstock.project.source import relation_of

_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)


class _Nothing(ChainableUndefined):
    """A name that is not known: prints nothing, and so does a call of it."""

    def __call__(self, *_: Any, **__: Any) -> str:  # type: ignore[override]
        return ""


def outline(node: Mapping[str, Any], nodes: Mapping[str, Mapping[str, Any]]) -> str:
    """The node's SQL with its relations in place."""
    raw = str(node.get("raw_code") or node.get("raw_sql") or "")

    def ref(*names: str, **_: Any) -> str:
        for unique_id in (node.get("depends_on") or {}).get("nodes") or ():
            upstream = nodes.get(unique_id)
            if upstream is not None and upstream["name"] == names[-1] and upstream.get("resource_type") != "source":
                if (upstream.get("config") or {}).get("materialized") == "ephemeral":
                    return f"({outline(upstream, nodes)})"
                return relation_of(upstream)
        return names[-1]

    def source(name: str, table: str) -> str:
        for unique_id in (node.get("depends_on") or {}).get("nodes") or ():
            upstream = nodes.get(unique_id)
            if upstream is not None and (upstream.get("source_name"), upstream["name"]) == (name, table):
                return relation_of(upstream)
        return f"{name}.{table}"

    environment = SandboxedEnvironment(undefined=_Nothing)
    environment.globals.update(ref=ref, source=source, var=_default, env_var=_default, is_incremental=_false)
    try:
        return environment.from_string(raw).render()
    except TemplateError:
        return _TAG.sub("", raw)


def _default(_: str, default: Any = "") -> Any:
    return default


def _false() -> bool:
    return False

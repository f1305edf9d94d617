"""The bodies of the project's functions that a model calls, compiled.

dbt compiles a function when it builds it. A run may be of models alone, and streams are deployed with the functions as
the project has them, so those that a model calls are compiled with it. With `--defer` the SQL calls another target's
function: its body is what that target's manifest has of it; without one, the stream calls what is in the catalog.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def with_functions(
    graph: Mapping[str, Any], manifest: Any, unique_id: str, sql: str, compiled: Callable[[Any], str]
) -> Mapping[str, Any]:
    """dbt's graph, with the compiled bodies of the functions that the model calls."""
    from penstock.compiler.functions import called

    if manifest is None:
        return graph
    functions = dict(graph.get("functions") or {})
    for entry in called(graph, [unique_id]):
        own = str(entry["unique_id"])
        function = manifest.functions[own]
        other = function.defer_function
        if other is not None and f"{other.schema}.{other.name}(" in sql.replace("`", ""):
            if other.compiled_code is None:
                del functions[own]
                continue
            given = {"schema": other.schema, "alias": other.name, "compiled_code": other.compiled_code}
            taken = other.to_dict(omit_none=True)
            functions[own] = {**entry, **{key: taken.get(key) for key in ("arguments", "returns", "config")}, **given}
        else:
            functions[own] = {**entry, "compiled_code": compiled(function)}
    return {**graph, "functions": functions}

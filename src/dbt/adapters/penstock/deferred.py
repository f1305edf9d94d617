"""`--defer`: a model that reads what another target has deployed.

dbt puts the other target's relation into the SQL; the compiler looks for the project's own. A node whose deferred
relation the SQL names is taken as that relation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def with_deferred(graph: Mapping[str, Any], manifest: Any, sql: str) -> Mapping[str, Any]:
    """dbt's graph, with the nodes under the names by which the SQL reads them."""
    if manifest is None:
        return graph
    taken: dict[str, Any] = {}
    for unique_id, node in manifest.nodes.items():
        other = getattr(node, "defer_relation", None)
        if other is None or unique_id not in graph["nodes"] or (other.schema, other.alias) == (node.schema, node.alias):
            continue
        if other.relation_name and other.relation_name in sql:
            taken[unique_id] = {**graph["nodes"][unique_id], "schema": other.schema, "alias": other.alias}
    return {**graph, "nodes": {**graph["nodes"], **taken}} if taken else graph

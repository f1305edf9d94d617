"""The spec of a new generation that is built beside the deployed one. Pure.

Rules
- It has another name and another table, and publishes nothing: what it would have published goes out at the takeover.
- Of tables that are being rebuilt themselves it reads the new rows: the hidden tables, in every place where the model
  reads the tables.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.compiler.spec import KafkaInput, StreamSpec, TableInput
from penstock.compiler.statement import parse, rewrite
from penstock.paths import beside
from penstock.project.sparktypes import quoted


def spec_beside(spec: StreamSpec, rebuilt: Collection[str] = ()) -> StreamSpec:
    """The spec of the stream that builds the new generation."""
    output = spec.output.model_copy(update={"relation": beside(spec.output.relation), "view": None})
    renamed = {"name": beside(spec.name), "output": output, "publish": None}
    return reading_beside(spec, rebuilt).model_copy(update=renamed)


def reading_beside(spec: StreamSpec, rebuilt: Collection[str]) -> StreamSpec:
    """The spec with the hidden tables of rebuilds in the place of the tables that they rebuild."""
    if not rebuilt:
        return spec
    inputs = tuple(
        each
        if isinstance(each, KafkaInput) or each.relation not in rebuilt
        else each.model_copy(update={"relation": beside(each.relation)})
        for each in spec.inputs
    )
    looked_up = {
        each.relation.lower(): ".".join(map(quoted, beside(each.relation).split(".")))
        for each in spec.inputs
        if isinstance(each, TableInput) and each.relation in rebuilt
    }
    follow = spec.follow
    if follow is not None:
        follow = follow.model_copy(update={"sql": _renamed(follow.sql, looked_up)})
    return spec.model_copy(update={"inputs": inputs, "sql": _renamed(spec.sql, looked_up), "follow": follow})


def _renamed(sql: str, names: dict[str, str]) -> str:
    return rewrite(parse(sql, "", ()), names) if names else sql

"""Whether a join of two streams is bounded in time, so that old rows can leave its state.

Rules
- A bound is a comparison (<, <=, >, >=, BETWEEN) that names columns of event time on both its sides. Two of them, one
  in each direction, bound the state of both inputs; equal event times or equal windows do so alone.
- It is a rule of thumb on names: it decides a warning, never a refusal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from sqlglot import exp

from penstock.compiler.statement import WINDOW


def is_bounded(conditions: Iterable[exp.Expr], event: Collection[str]) -> bool:
    """Whether the conditions of a join bound it in both directions; `event` are names of event-time columns."""
    bounds = 0
    for condition in conditions:
        for part in condition.walk():
            if isinstance(part, exp.Between) and _named(part.this, event):
                bounds += _named(part.args["low"], event) + _named(part.args["high"], event)
            elif isinstance(part, exp.LT | exp.LTE | exp.GT | exp.GTE):
                bounds += _named(part.this, event) and _named(part.expression, event)
            elif isinstance(part, exp.EQ) and _named(part.this, event) and _named(part.expression, event):
                bounds += 2
    return bounds >= 2


def _named(part: exp.Expr, event: Collection[str]) -> bool:
    names = {identifier.name.lower().replace(WINDOW, "window") for identifier in part.find_all(exp.Identifier)}
    return bool(names & {*event, "window"})

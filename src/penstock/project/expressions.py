"""The expressions of computed columns, read without Spark.

Rules
- One expression of Spark SQL over the columns of the same source, computed from one row alone.
- Computed columns may use each other, but not in a circle; `in_order` says which come first.
- Functions are not checked here: Spark knows them all, and names an unknown one when the model is deployed.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from penstock.errors import Kind, did_you_mean
from penstock.errors.catalogue import EXPR_COLUMN, EXPR_CYCLE, EXPR_NOT_ROWWISE, EXPR_SYNTAX

# Aggregates and generators of Spark that the parser has no class of its own for.
AGGREGATES = frozenset({
    "bit_and", "bit_or", "bit_xor", "bitmap_construct_agg", "bitmap_or_agg", "count_min_sketch", "every", "some",
    "histogram_numeric", "hll_sketch_agg", "hll_union_agg", "kurtosis", "skewness", "mode", "regr_avgx", "regr_avgy",
    "regr_count", "regr_intercept", "regr_r2", "regr_slope", "regr_sxx", "regr_sxy", "regr_syy", "try_avg", "try_sum",
    "collect_list", "collect_set", "array_agg", "string_agg", "listagg", "percentile", "percentile_approx",
})  # fmt: skip
_GENERATORS = frozenset({"explode_outer", "posexplode_outer", "inline_outer", "stack", "json_tuple", "variant_explode"})


class ExpressionError(Exception):
    """Why an expression cannot be used."""

    def __init__(self, kind: Kind, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.message = message
        self.hint = hint


def columns_of(text: str, known: Mapping[str, str]) -> frozenset[str]:
    """The columns that an expression uses; `known` are those of the source, by their names in lower case."""
    tree = _parsed(text)
    found: set[str] = set()
    for node in tree.walk():
        what = _not_rowwise(node)
        if what is not None:
            raise ExpressionError(EXPR_NOT_ROWWISE, f"it has {what}")
        if isinstance(node, exp.Column):
            # a.b is a field of the column a: there is no other relation here
            first = node.parts[0].name
            if first.lower() not in known:
                raise ExpressionError(
                    EXPR_COLUMN, f"it uses '{first}', which is no column of the source",
                    did_you_mean(first, known.values()),
                )  # fmt: skip
            found.add(known[first.lower()])
    return frozenset(found)


def in_order(uses: Mapping[str, frozenset[str]]) -> list[str]:
    """The computed columns (name -> columns it uses), each after those that it needs."""
    done: list[str] = []
    within: list[str] = []

    def visit(name: str) -> None:
        if name in done or name not in uses:
            return
        if name in within:
            circle = [*within[within.index(name) :], name]
            raise ExpressionError(EXPR_CYCLE, f"it depends on itself: {' -> '.join(circle)}")
        within.append(name)
        for below in sorted(uses[name]):
            visit(below)
        within.pop()
        done.append(name)

    for name in uses:
        visit(name)
    return done


def _parsed(text: str) -> exp.Expr:
    try:
        trees = Spark().parse(f"select {text}")
    except ParseError as problem:
        first = problem.errors[0] if problem.errors else {}
        near = str(first.get("highlight") or "").strip()
        raise ExpressionError(
            EXPR_SYNTAX, f"it cannot be read near '{near}'" if near else "it cannot be read"
        ) from None
    except TokenError:
        raise ExpressionError(EXPR_SYNTAX, "a quote or bracket is not closed") from None
    tree = trees[0] if len(trees) == 1 else None
    if isinstance(tree, exp.Select) and len(tree.expressions) == 1:
        found = tree.expressions[0]
        more = [name for name, part in tree.args.items() if part and name != "expressions"]
        if isinstance(found, exp.Expr) and not isinstance(found, exp.Alias) and not more:
            return found
    raise ExpressionError(EXPR_SYNTAX, "it is not one expression")


def _not_rowwise(node: exp.Expr) -> str | None:
    if isinstance(node, exp.Query):
        return "a subquery"
    if isinstance(node, exp.Window):
        return "a window function"
    if isinstance(node, exp.Star):
        return "a '*'"
    if isinstance(node, exp.UDTF | exp.Explode | exp.Inline) or (
        isinstance(node, exp.Anonymous) and node.name.lower() in _GENERATORS
    ):
        return "a generator of rows"
    if isinstance(node, exp.AggFunc) or (isinstance(node, exp.Anonymous) and node.name.lower() in AGGREGATES):
        return "an aggregate"
    return None

"""The key of a GROUP BY: which columns of the result identify a group.

Rules
- A group expression is found in the result by position, by alias, or as the same expression.
- The key column of `window(...)`, or of a column that is one, is its start, its end or the window itself, whichever the
  result has, in that order.
- A group expression that the result lacks is an error: rows could not be replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sqlglot import exp

from penstock.compiler.rows import SESSION, plain, window_function
from penstock.compiler.statement import WINDOW, Statement
from penstock.errors import PenstockError
from penstock.errors.catalogue import MODEL_KEYS, MODEL_NOT_INCREMENTAL


def group_keys(
    statement: Statement,
    node: exp.Select,
    has_aggregate: Callable[[exp.Expr], bool],
    windows: Mapping[str, str],
    *,
    checks: bool,
) -> tuple[str, ...]:
    """The names of the key's columns; with `checks` off, those that can be found. `windows`: columns that are one."""
    group = node.args.get("group")
    if group is None:
        return ()
    if any(isinstance(part, exp.Rollup | exp.Cube | exp.GroupingSets) for part in group.walk()):
        raise MODEL_NOT_INCREMENTAL.error(
            "GROUP BY with ROLLUP, CUBE or GROUPING SETS cannot be kept up to date by a stream.", at=statement.at(group)
        )
    keys: list[str] = []
    for expression in _wanted(node, has_aggregate):
        key = _key(statement, node, expression, windows, checks=checks)
        if key is not None and key not in keys:
            keys.append(key)
    return tuple(keys)


def grouped_by(node: exp.Select, has_aggregate: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    """The expressions that a SELECT groups by, positions and aliases seen through."""
    return [meant_by(node, each) for each in _wanted(node, has_aggregate)]


def is_windowed(groups: list[exp.Expr], windows: Mapping[str, str]) -> bool:
    """Whether one of them is a window of time, or made of one."""
    return any(window_function(part, windows) for each in groups for part in each.walk())


def session_windows(tree: exp.Expr) -> bool:
    return any(window_function(call, {}) == SESSION for call in tree.find_all(exp.Anonymous))


def _wanted(node: exp.Select, has_aggregate: Callable[[exp.Expr], bool]) -> list[exp.Expr]:
    group = node.args.get("group")
    if group is None:
        return []
    if group.args.get("all"):
        return [each for each in node.expressions if not has_aggregate(each)]
    return list(group.expressions)


def _key(
    statement: Statement, node: exp.Select, expression: exp.Expr, windows: Mapping[str, str], *, checks: bool
) -> str | None:
    meant = meant_by(node, expression)
    if isinstance(meant, exp.Literal | exp.Null | exp.Boolean):
        return None  # a constant does not tell groups apart
    found = _window_column(node, meant) if window_function(meant, windows) else _projection_of(node, meant)
    if found is None and any(each.is_star for each in node.expressions) and isinstance(meant, exp.Column):
        return _output_name(meant)
    if found is not None and _output_name(found):
        return _output_name(found)
    if checks:
        raise _missing(statement, expression, selected=found is not None)
    return None


def meant_by(node: exp.Select, expression: exp.Expr) -> exp.Expr:
    """The expression behind a position or an alias."""
    if isinstance(expression, exp.Literal) and not expression.is_string and expression.name.isdigit():
        index = int(expression.name) - 1
        if 0 <= index < len(node.expressions):
            behind: exp.Expr = node.expressions[index].unalias()
            return behind
    if isinstance(expression, exp.Column) and not expression.table:
        for projection in node.expressions:
            if isinstance(projection, exp.Alias) and projection.alias.lower() == expression.name.lower():
                if _uses(projection.this, expression.name) or projection.this.find(exp.AggFunc):
                    continue  # upper(item_id) as item_id: Spark takes the input's column, not the alias
                return projection.unalias()
    if isinstance(expression, exp.Paren):
        return meant_by(node, expression.this)
    return expression.unalias()


def _uses(expression: exp.Expr, name: str) -> bool:
    return any(column.name.lower() == name.lower() for column in expression.find_all(exp.Column))


def _window_column(node: exp.Select, window: exp.Expr) -> exp.Expr | None:
    found: dict[str, exp.Expr] = {}
    for projection in node.expressions:
        part = _window_part(projection.unalias(), window)
        if part is not None:
            found.setdefault(part, projection)
    return found.get("start") or found.get("end") or found.get("")


def _window_part(expression: exp.Expr, window: exp.Expr) -> str | None:
    """'start' or 'end' of the window, '' for the window itself, None for anything else."""
    if expression.name.lower() in {"start", "end"} and (whole := _whole(expression)) is not None:
        return expression.name.lower() if _is_window(whole, window) else None
    return "" if _is_window(expression, window) else None


def _whole(expression: exp.Expr) -> exp.Expr | None:
    """What `x.start` is a field of; a name before the dot is read as a table's."""
    if isinstance(expression, exp.Dot):
        return expression.this.unnest() if isinstance(expression.this, exp.Expr) else None
    if isinstance(expression, exp.Column) and expression.table:
        return exp.column(expression.args["table"], table=expression.args.get("db"))
    return None


def _is_window(expression: exp.Expr, window: exp.Expr) -> bool:
    """Whether it is that window; Spark calls the column of a call after the function."""
    if isinstance(expression, exp.Column) and isinstance(window, exp.Anonymous):
        return plain(expression.name) == plain(window.name)
    return _same(expression, window) or _same_unqualified(expression, window)


def _projection_of(node: exp.Select, meant: exp.Expr) -> exp.Expr | None:
    """The same expression in the result: literally, or else with one of the two written without qualifiers."""
    for same in (_same, _same_unqualified):
        for projection in node.expressions:
            if same(projection.unalias(), meant):
                return projection if isinstance(projection, exp.Expr) else None
    return None


def _same(one: exp.Expr, other: exp.Expr) -> bool:
    return _text(one, qualified=True) == _text(other, qualified=True)


def _same_unqualified(one: exp.Expr, other: exp.Expr) -> bool:
    """`c.item_id` and `item_id` are the same; `a.item_id` and `b.item_id` are not."""
    bare = any(not any(column.table for column in each.find_all(exp.Column)) for each in (one, other))
    return bare and _text(one, qualified=False) == _text(other, qualified=False)


def _text(expression: exp.Expr, *, qualified: bool) -> str:
    """The expression without quotes and case, and without qualifiers if they do not matter."""

    def plain(part: exp.Expr) -> exp.Expr:
        if isinstance(part, exp.Identifier):
            return exp.to_identifier(part.name.lower(), quoted=False)
        if isinstance(part, exp.Column) and not qualified and part.table.lower() != WINDOW:
            return exp.column(exp.to_identifier(part.name.lower(), quoted=False))
        return part

    return expression.unalias().copy().transform(plain).sql(dialect="spark", comments=False).lower()


def _output_name(projection: exp.Expr) -> str:
    name = projection.alias_or_name
    if isinstance(projection, exp.Alias | exp.Column | exp.Dot) and name:
        return "window" if name.lower() == WINDOW else name
    return window_function(projection, {})


def _missing(statement: Statement, expression: exp.Expr, *, selected: bool) -> PenstockError:
    shown = expression.sql(dialect="spark", comments=False).replace(WINDOW.upper(), "window").replace(WINDOW, "window")
    if selected:
        return MODEL_KEYS.error(
            f"the GROUP BY expression {shown} has no name in the result.", at=statement.at(expression),
            hint="Give it one with 'as'.",
        )  # fmt: skip
    return MODEL_KEYS.error(f"the GROUP BY expression {shown} is not in the result.", at=statement.at(expression))

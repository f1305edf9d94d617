"""SQL in which the rows of a stream keep their order while tables are joined to them.

Spark keeps the order where it brings the whole table to the rows (a broadcast). Where it brings the rows to the table,
or both to a third place, the last of a key is any of them.

Rules
- Each SELECT that joins what is made of a stream with something else names that as what is to be brought: by a hint,
  for between two small sides Spark chooses by their size.
- Nothing else of the text changes, and all lines stay.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from penstock.compiler.statement import identifier, parse


def broadcast(sql: str, streams: Collection[str]) -> str:
    """The SQL with the hints; `streams` are the names of the streams' views in it."""
    tree = parse(sql, "", ()).tree
    streaming = _with_ctes(tree, streams)
    tokens = Spark().tokenize(sql)
    places: dict[int, list[str]] = {}
    for select in tree.find_all(exp.Select):
        sources = _sources(select)
        tables = [each for each in sources if not _reads(each, streaming)]
        if not tables or len(tables) == len(sources):
            continue
        place = _select_of(tokens, sources)
        if place is not None:
            places.setdefault(place, []).extend(identifier(each.alias_or_name) for each in tables if each.alias_or_name)
    for place, names in sorted(places.items(), reverse=True):
        sql = f"{sql[:place]} /*+ BROADCAST({', '.join(dict.fromkeys(names))}) */{sql[place:]}" if names else sql
    return sql


def _with_ctes(tree: exp.Query, streams: Collection[str]) -> set[str]:
    """The names of what is made of a stream."""
    found = {name.lower() for name in streams}
    ctes = list(tree.find_all(exp.CTE))
    for _ in ctes:
        found |= {cte.alias.lower() for cte in ctes if _reads(cte.this, found)}
    return found


def _reads(node: exp.Expr, names: Collection[str]) -> bool:
    return any(not table.db and table.name.lower() in names for table in node.find_all(exp.Table))


def _sources(select: exp.Select) -> list[exp.Expr]:
    """What a SELECT takes rows from, joins within joins, too."""
    read = select.args.get("from_") or select.args.get("from")
    pending = [read.this] if read is not None else []
    pending += [join.this for join in select.args.get("joins") or ()]
    found: list[exp.Expr] = []
    while pending:
        source = pending.pop(0)
        nested = source.args.pop("joins", None) if isinstance(source, exp.Table | exp.Subquery) else None
        pending += [join.this for join in nested or ()]
        if isinstance(source, exp.Subquery) and not source.alias and isinstance(source.this, exp.Table):
            pending.insert(0, source.this)  # in brackets alone
        else:
            found.append(source)
    return found


def _select_of(tokens: Sequence[Any], sources: Sequence[exp.Expr]) -> int | None:
    """Where the SELECT of these sources ends: the first one before them that is in no bracket that closed again."""
    start = min((at for each in sources if (at := _place(each)) is not None), default=None)
    if start is None:
        return None
    depth = 0
    for token in reversed([token for token in tokens if token.start < start]):
        kind = token.token_type.name
        if kind == "R_PAREN":
            depth += 1
        elif kind == "L_PAREN":
            depth = max(depth - 1, 0)
        elif kind == "SELECT" and depth == 0:
            return int(token.end) + 1
    return None


def _place(source: exp.Expr) -> int | None:
    """The place of a name that belongs to the SELECT itself: of a table, or of the alias of a subquery."""
    named = source.args.get("alias") if isinstance(source, exp.Subquery) else source
    if named is None:
        return None
    return min((int(part.meta["start"]) for part in named.walk() if "start" in part.meta), default=None)

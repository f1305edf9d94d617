"""SQL in which the rows of a stream keep their order while tables are joined to them.

Spark keeps the order where it brings the whole table to the rows (a broadcast). Where it brings the rows to the table,
or both to a third place, the last of a key is any of them.

Rules
- Each SELECT that joins what is made of a stream with something else names that as what is to be brought: by a hint,
  for between two small sides Spark chooses by their size. A subquery without a name is given one.
- No hint can name a join of tables alone: one that a stream is joined to is refused.
- Nothing else of the text changes, and all lines stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from penstock.compiler.rows import sources_in
from penstock.compiler.statement import Statement, identifier, parse
from penstock.errors.catalogue import MODEL_SETTING

_QUERY = {"SELECT", "WITH", "FROM", "VALUES", "L_PAREN"}


def broadcast(sql: str, streams: Collection[str]) -> str:
    """The SQL with the hints; `streams` are the names of the streams' views in it."""
    tree = parse(sql, "", ()).tree
    streaming = _with_ctes(tree, streams)
    tokens = Spark().tokenize(sql)
    hints: dict[int, list[str]] = {}
    aliases: dict[int, str] = {}
    taken = {token.text.lower() for token in tokens}
    for select in tree.find_all(exp.Select):
        joined = [_from(select), *(join.this for join in select.args.get("joins") or ())]
        sources = [each for source in joined if source is not None for each in sources_in(source)]
        tables = [each for each in sources if not _is_of_stream(each, streaming)]
        if not tables or len(tables) == len(sources):
            continue
        place = _select_of(tokens, sources)
        for table in tables if place is not None else ():
            name = table.alias_or_name
            if not name and (brackets := _brackets_of(tokens, table)) is not None:
                name = next(free for number in range(1, len(tokens)) if (free := f"looked_up_{number}") not in taken)
                taken.add(name)
                aliases[brackets[1] + 1] = f" {name}"
            if name:
                hints.setdefault(int(place or 0), []).append(identifier(name))
    told = {place: f" /*+ BROADCAST({', '.join(dict.fromkeys(names))}) */" for place, names in hints.items()}
    for place, text in sorted({**aliases, **told}.items(), reverse=True):
        sql = sql[:place] + text + sql[place:]
    return sql


def refuse_joined_tables(statement: Statement, streams: Collection[str]) -> None:
    """PEN-1311 when a stream is joined to a join of tables, which no hint can name."""
    streaming = _with_ctes(statement.tree, streams)

    def tables(source: exp.Expr) -> int | None:
        """How many tables are joined in a source; None where a stream is among them."""
        bracket = isinstance(source, exp.Subquery) and not source.alias
        inner = bracket and isinstance(source.this, exp.Table | exp.Subquery)
        left = tables(source.this) if inner else None if _is_of_stream(source, streaming) else 1
        for join in source.args.get("joins") or ():
            left = met(left, join)
        return left

    def met(left: int | None, join: exp.Join) -> int | None:
        right = tables(join.this)
        if left is not None and right is not None:
            return left + right
        if (left or 0) > 1 or (right or 0) > 1:
            raise MODEL_SETTING.error(
                "rows that replace each other by a key keep their order where each table is brought to them, and a "
                "join of tables alone cannot be.", at=statement.at(join),
                hint="Join the tables one after the other to what comes before them, or write their join as a subquery "
                "with a name: join (select … from a join b …) t.",
            )  # fmt: skip
        return None

    for select in statement.tree.find_all(exp.Select):
        if (read := _from(select)) is not None:
            left = tables(read)
            for join in select.args.get("joins") or ():
                left = met(left, join)


def _from(select: exp.Select) -> exp.Expr | None:
    read = select.args.get("from_") or select.args.get("from")
    return read.this if read is not None else None


def _with_ctes(tree: exp.Query, streams: Collection[str]) -> set[str]:
    """The names of what is made of a stream."""
    found = {name.lower() for name in streams}
    ctes = list(tree.find_all(exp.CTE))
    for _ in ctes:
        found |= {cte.alias.lower() for cte in ctes if _reads(cte.this, found)}
    return found


def _is_of_stream(source: exp.Expr, names: Collection[str]) -> bool:
    """Whether a source itself is made of a stream, not what it is joined to."""
    if isinstance(source, exp.Table):
        return not source.db and source.name.lower() in names
    return _reads(source.this if isinstance(source, exp.Subquery) else source, names)


def _reads(node: exp.Expr, names: Collection[str]) -> bool:
    return any(_is_of_stream(table, names) for table in node.find_all(exp.Table))


def _select_of(tokens: Sequence[Any], sources: Sequence[exp.Expr]) -> int | None:
    """Where the SELECT of these sources ends: the first one before them that is in no bracket that closed again."""
    start = min((at for each in sources if (at := _place(tokens, each)) is not None), default=None)
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


def _place(tokens: Sequence[Any], source: exp.Expr) -> int | None:
    """The place of a name that belongs to the SELECT itself: of a table, or of the alias of a subquery. Of a subquery
    without a name, of its bracket."""
    named = source.args.get("alias") if isinstance(source, exp.Subquery) else source
    if named is None:
        brackets = _brackets_of(tokens, source)
        return brackets[0] if brackets is not None else None
    return min(_starts(named), default=None)


def _brackets_of(tokens: Sequence[Any], source: exp.Expr) -> tuple[int, int] | None:
    """The places of the brackets around a subquery; None of other sources, and where no name may follow them."""
    places = list(_starts(source.this)) if isinstance(source.this, exp.Expr) else []  # VALUES has nothing inside
    if not places or source.args.get("sample"):
        return None
    opened: list[tuple[int, bool]] = []
    for token, following in zip(tokens, [*tokens[1:], None], strict=True):
        kind = token.token_type.name
        if kind == "L_PAREN":
            opened.append((int(token.start), following is not None and following.token_type.name in _QUERY))
        elif kind == "R_PAREN" and opened:
            start, is_query = opened.pop()
            if is_query and start < min(places) and max(places) < token.start:
                return start, int(token.end)
    return None


def _starts(node: exp.Expr) -> Iterator[int]:
    return (int(part.meta["start"]) for part in node.walk() if "start" in part.meta)

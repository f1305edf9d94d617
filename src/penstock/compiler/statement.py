"""The compiled SQL of a model as a syntax tree that knows its positions, and its rewriting.

Rules
- One SELECT is a model, with a semicolon after it or without; anything else is a syntax error with the line of the
  model file.
- Only streaming relations are replaced, at their positions in the text; all other text and all lines stay.
- A replaced relation without an alias gets its own name as alias, so that `clicks.user_id` goes on working.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError
from sqlglot.tokenizer_core import TokenType

from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import MODEL_SYNTAX

# `window` is a keyword of the parser in places where Spark has a function; this name of equal length stands for it.
WINDOW = "wind0w"
_SESSION_CATALOG = "spark_catalog"
_ENCLOSED = (("'", "'"), ('"', '"'), ("`", "`"), ("--", "\n"), ("/*", "*/"))


@dataclass(frozen=True)
class Statement:
    """A model's SELECT."""

    sql: str
    tree: exp.Query
    path: str
    lines: tuple[int, ...]  # model file's line of each line

    def at(self, node: exp.Expr | None) -> Location:
        """The place in the model file of a part of the tree."""
        return Location(self.path, self.model_line(_line_of(node)))

    def model_line(self, line: int | None) -> int | None:
        if line is None or not self.lines:
            return line
        return self.lines[min(max(line, 1), len(self.lines)) - 1]


def parse(sql: str, path: str, lines: tuple[int, ...]) -> Statement:
    """The statement, or MODEL_SYNTAX at the line of the model file."""
    draft = Statement(sql, exp.Select(), path, lines)
    try:
        trees = [tree for tree in Spark().parse(_readable(sql)) if tree is not None]
    except ParseError as problem:
        first = problem.errors[0] if problem.errors else {}
        raise _syntax_error(draft, first.get("line"), _described(first)) from None
    except TokenError:
        raise _syntax_error(draft, _open_quote(sql), "a quote, bracket or comment is not closed") from None
    if len(trees) > 1:
        raise MODEL_SYNTAX.error("the model has more than one statement.", at=Location(path), hint="Keep one SELECT.")
    if not trees or not isinstance(trees[0], exp.Query):
        raise MODEL_SYNTAX.error("the model is not a SELECT.", at=draft.at(trees[0] if trees else None))
    return Statement(sql, trees[0], path, lines)


def without_semicolon(sql: str) -> str:
    """The text without a semicolon at its end; comments after it stay."""
    try:
        tokens = Spark().tokenize(sql)
    except TokenError:
        return sql  # `parse` says what is wrong with it
    while tokens and tokens[-1].token_type is TokenType.SEMICOLON:
        sign = tokens.pop()
        sql = sql[: sign.start] + sql[sign.end + 1 :]
    return sql


def relation_name(table: exp.Table) -> str | None:
    """schema.identifier in lower case, or None for a plain name or another catalog's table."""
    if not table.db or (table.catalog and table.catalog.lower() != _SESSION_CATALOG):
        return None
    return f"{table.db}.{table.name}".lower()


def relations(statement: Statement) -> dict[str, exp.Table]:
    """The relations that the SQL reads (schema.identifier, lower case), each with its first place."""
    found: dict[str, exp.Table] = {}
    for table in statement.tree.find_all(exp.Table):
        name = relation_name(table)
        if name is not None:
            found.setdefault(name, table)
    return found


def rewrite(statement: Statement, views: Mapping[str, str]) -> str:
    """The SQL with each streaming relation (schema.identifier, lower case) replaced by its view."""
    changes: list[tuple[int, int, str]] = []
    unaliased: set[str] = set()
    for table in statement.tree.find_all(exp.Table):
        name = relation_name(table)
        if name is None or name not in views:
            continue
        text = views[name]
        if not table.alias:
            unaliased.add(name)
            text += f" as {identifier(table.name)}"
        changes.append((*_span(table.parts), text))
    for column in statement.tree.find_all(exp.Column):
        if not column.args.get("db"):
            continue
        if f"{column.text('db')}.{column.table}".lower() in unaliased:
            parts = [part for part in column.parts[:-1] if isinstance(part, exp.Identifier)]
            changes.append((*_span(parts), identifier(column.table)))
    sql = statement.sql
    for start, end, text in sorted(set(changes), reverse=True):
        sql = sql[:start] + text + "\n" * sql.count("\n", start, end) + sql[end:]
    return sql


def qualified(statement: Statement, schema: str) -> str:
    """The SQL with the schema before each plain name of a relation."""
    ctes = {cte.alias.lower() for cte in statement.tree.find_all(exp.CTE)}
    plain = [table for table in statement.tree.find_all(exp.Table) if isinstance(table.this, exp.Identifier)]
    starts = {_span(table.parts)[0] for table in plain if not table.db and table.name.lower() not in ctes}
    sql = statement.sql
    for start in sorted(starts, reverse=True):
        sql = f"{sql[:start]}{identifier(schema)}.{sql[start:]}"
    return sql


def stream_reads(sql: str, views: Collection[str]) -> tuple[str, ...]:
    """The views in the order in which the query reads them, CTEs unfolded: a checkpoint knows its sources by it."""
    within: dict[str | None, list[exp.Table]] = {}
    for table in parse(sql, "", ()).tree.find_all(exp.Table):
        cte = table.find_ancestor(exp.CTE)
        within.setdefault(cte.alias.lower() if cte else None, []).append(table)

    def reads(name: str | None, above: frozenset[str | None]) -> list[str]:
        found: list[str] = []
        for table in sorted(within.get(name, ()), key=lambda each: _span(each.parts)):
            inner = "" if table.db else table.name.lower()
            if inner in views:
                found.append(inner)
            elif inner in within and inner not in above:
                found += reads(inner, above | {inner})
        return found

    return tuple(reads(None, frozenset({None})))


def names_used(sql: str) -> frozenset[str] | None:
    """The names in the SQL that may be columns, in lower case; None when it takes all columns of something."""
    try:
        tree = parse(sql, "", ()).tree
    except PenstockError:
        return None
    if any(not isinstance(star.parent, exp.Count) for star in tree.find_all(exp.Star)):
        return None
    if any(join.method.upper() == "NATURAL" for join in tree.find_all(exp.Join)):
        return None
    return frozenset(name.name.lower().replace(WINDOW, "window") for name in tree.find_all(exp.Identifier))


def names_of_aliases(sql: str, view: str) -> frozenset[str]:
    """The names, in lower case, that mean an alias or a column of the view, whichever there is: in a SELECT that reads
    the view, those of its aliases that stand alone where a column is meant."""
    found: set[str] = set()
    for table in parse(sql, "", ()).tree.find_all(exp.Table):
        select = table.find_ancestor(exp.Select)
        if select is not None and not table.db and table.name.lower() == view.lower():
            aliases = {each.alias.lower() for each in select.expressions if isinstance(each, exp.Alias)}
            found |= aliases & {each.name.lower() for each in select.find_all(exp.Column) if not each.table}
    return frozenset(name.replace(WINDOW, "window") for name in found)


def same_tokens(one: str, other: str) -> bool:
    """Whether two texts differ in white space and comments alone."""
    try:
        left, right = (Spark().tokenize(sql) for sql in (one, other))
    except TokenError:
        return one == other
    return [(token.token_type, token.text) for token in left] == [(token.token_type, token.text) for token in right]


def moved_lines(one: str, other: str) -> tuple[int, ...]:
    """For each line of one text, from 0, the line of the other where the same token stands.

    The texts have the same tokens. A line on which no token begins goes with the one before it.
    """
    try:
        pairs = list(zip(*(_token_lines(sql) for sql in (one, other)), strict=True))
    except (TokenError, ValueError):
        return tuple(range(len(one.splitlines())))
    there: dict[int, int] = {}
    for here, line in pairs:
        there.setdefault(here, line)
    found: list[int] = []
    for line in range(len(one.splitlines())):
        found.append(there.get(line, found[-1] if found else pairs[0][1] if pairs else 0))
    return tuple(found)


def _token_lines(sql: str) -> list[int]:
    return [sql.count("\n", 0, token.start) for token in Spark().tokenize(sql)]


def _readable(sql: str) -> str:
    """The text with the function and column `window` under a name that the parser takes everywhere."""
    tokens = Spark().tokenize(sql)
    found = [
        token.start
        for index, token in enumerate(tokens)
        if token.text.lower() == "window"
        and token.end - token.start == 5  # not in quotes
        and not _is_window_clause([each.text.lower() for each in tokens[index + 1 : index + 4]])
    ]
    for start in reversed(found):
        sql = sql[:start] + WINDOW + sql[start + len(WINDOW) :]
    return sql


def _is_window_clause(following: list[str]) -> bool:
    """WINDOW name AS (…), the clause of a SELECT."""
    return len(following) == 3 and following[1:] == ["as", "("]


def _span(parts: Sequence[exp.Expr]) -> tuple[int, int]:
    return min(int(part.meta["start"]) for part in parts), max(int(part.meta["end"]) for part in parts) + 1


def identifier(name: str) -> str:
    """The name as SQL has it."""
    return name if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) else "`" + name.replace("`", "``") + "`"


def _line_of(node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    lines = [int(part.meta["line"]) for part in node.walk() if "line" in part.meta]
    return min(lines, default=None)


def _described(problem: Mapping[str, object]) -> str:
    near = str(problem.get("highlight") or "").strip().replace(WINDOW, "window")
    return f"the SQL cannot be read near '{near}'" if near else "the SQL cannot be read"


def _open_quote(sql: str) -> int:
    """The line where the quote or comment begins that is never closed."""
    at, opened = 0, 0
    while at < len(sql):
        end = next((close for start, close in _ENCLOSED if sql.startswith(start, at)), None)
        if end is None:
            at += 1
            continue
        opened, at = at, at + (2 if end in {"*/", "\n"} else 1)
        while at < len(sql) and not sql.startswith(end, at):
            at += 2 if sql[at] == "\\" and end in {"'", '"'} else 1
        if at >= len(sql) and end != "\n":
            break
        at += len(end)
    return sql.count("\n", 0, opened) + 1


def _syntax_error(draft: Statement, line: object, message: str) -> PenstockError:
    known = draft.model_line(line if isinstance(line, int) else None)
    return MODEL_SYNTAX.error(f"{message}.", at=Location(draft.path, known))

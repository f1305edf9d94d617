"""A query with a filter above an aggregate, as two: the aggregate, and what is made of its rows.

In Spark's update mode an aggregate gives the groups that changed and pass the filter. A group that no longer passes is
not among them, and its old row would stay. So the stream keeps the aggregate without the filter, and the rest of the
query is asked of the groups that changed: one without a row in the answer is deleted.

Rules
- The text is cut, not written anew: each part keeps its words and its lines, so that errors have the model's lines.
- HAVING becomes a column of the aggregate. There a name is the input's column before it is an alias; in HAVING it is an
  alias, unless that column is grouped by. So an alias is written out.
- The second query has the aggregate's rows in the place of the aggregate, and only those CTEs that it still names: none
  of them reads a stream.
- A query whose text cannot be cut so is an UncutError that says why: an aggregate in or below a WITH that is not the
  query's own; brackets around it all; a FROM before its SELECT; pipes to or from the aggregate, of which the tree has
  parts that nobody wrote.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from penstock.compiler.grouping import meant_by
from penstock.compiler.rows import contains_aggregate, is_aggregate

VIEW = "changed_groups"
KEPT = "_penstock_kept"

T = TypeVar("T")


class UncutError(Exception):
    """The text of the query cannot be cut: what it is, and what to do."""

    def __init__(self, what: str, cure: str) -> None:
        super().__init__(what)
        self.what = what
        self.cure = cure


@dataclass(frozen=True)
class Split:
    """The two queries."""

    aggregate: str  # over the inputs
    rest: str  # over VIEW


@dataclass(frozen=True)
class _Token:
    word: str
    start: int
    end: int  # the sign after it
    depth: int  # brackets around it


def split(sql: str, tree: exp.Query, aggregate: exp.Select) -> Split:
    """Cut the query at its aggregate, or raise UncutError."""
    if any(each is not tree.args.get("with_") for each in tree.find_all(exp.With)):
        raise UncutError("in a WITH of its own", "Move the WITH to the beginning of the query.")
    if not isinstance(tree, exp.Select):
        raise _bracketed()
    if _is_piped(sql, aggregate):
        raise UncutError("in a query with pipes", "Write it as SELECT ... FROM ... without '|>'.")
    cut = _Cut(sql, tree, aggregate)
    return Split(cut.first(), cut.second())


class _Cut:
    def __init__(self, sql: str, tree: exp.Select, aggregate: exp.Select) -> None:
        self.sql = sql
        self.tree = tree
        self.aggregate = aggregate
        self.tokens = _tokens(sql)
        self.ctes = {cte.alias.lower(): self._definition(cte) for cte in tree.ctes}
        after = max((end for _, end in self.ctes.values()), default=0)
        begin = _found(token for token in self.tokens if token.start >= after)
        if begin.word == "(":
            raise _bracketed()
        if begin.word != "select":
            raise UncutError("in a query that does not begin with SELECT", "Write it as SELECT ... FROM ...")
        self.main = begin.start
        self.start, self.end = (self.main, len(sql)) if aggregate is tree else self._brackets()
        own = [token for token in self.tokens if self.start <= token.start < self.end]
        self.own = own = [token for token in own if token.depth == own[0].depth]
        # The last FROM before what is read: `a is distinct from b` has one, too.
        read = _found(sorted(_starts(aggregate.args["from_"])))
        self.origin = _found(token for token in reversed(own) if token.word == "from" and token.start < read)
        self.having = None
        if aggregate.args.get("having"):
            self.having = _found(token for token in reversed(own) if token.word == "having")
        if own[0].word != "select":
            raise _unwritten()

    def first(self) -> str:
        """The aggregate, with HAVING as a column."""
        return self._composed(self._named_by(self.aggregate), self.start, self._body())

    def second(self) -> str:
        """The rest, over the aggregate's rows."""
        if self.aggregate is self.tree:
            return self._rows()
        needed = self._named_by(self.tree, without=self.aggregate)
        return self._composed(needed, self.main, self._text(self.main, len(self.sql)))

    def _body(self) -> str:
        body = self.sql[self.start : self.end]
        if self.having is None:
            return body
        at, having = self.origin.start - self.start, self.having.start - self.start
        condition = self.sql[self.having.end : self.end]
        flag = f", ({_one_line(self._unaliased(self.having.end))}) as {KEPT}"
        # After the last word of the list, before white space and comments.
        last = max(token.end for token in self.tokens if token.end <= self.origin.start) - self.start
        return body[:last] + flag + body[last:at] + body[at:having].rstrip(" ") + _lines(condition)

    def _unaliased(self, start: int) -> str:
        """The condition of HAVING, with what an alias stands for in its place."""
        text = self.sql[start : self.end]
        for column in sorted(_columns(self.aggregate.args["having"]), key=_begin, reverse=True):
            meant = self._meant(column)
            if meant is not None:
                begin, end = _span(column.parts[0])
                text = text[: begin - start] + f"({meant})" + text[end - start :]
        return text

    def _meant(self, column: exp.Column) -> str | None:
        """The text of the expression whose alias the name is; None for a column of the input."""
        name = column.parts[0].name.lower()
        tables = {table.alias_or_name.lower() for table in self.aggregate.find_all(exp.Table, exp.Subquery)}
        if (len(column.parts) > 1 and name in tables) or self._is_grouped(name):
            return None
        for projection in self.aggregate.expressions:
            if isinstance(projection, exp.Alias) and projection.alias.lower() == name:
                return self._expression(projection)
        return None

    def _is_grouped(self, name: str) -> bool:
        """Whether the query groups by the input's column of that name, not by what has it as an alias."""
        group = self.aggregate.args.get("group") or exp.Group()
        wanted = list(group.expressions)
        if group.args.get("all"):
            wanted = [each for each in self.aggregate.expressions if not contains_aggregate(each)]
        behind = [meant_by(self.aggregate, each) for each in wanted]
        return any(isinstance(each, exp.Column) and each.name.lower() == name for each in behind)

    def _expression(self, projection: exp.Alias) -> str:
        """The text of a result's column, without its alias."""
        alias, _ = _span(projection.args["alias"])
        before = [token for token in self.own if token.start < alias]
        opens = _found(
            token.end for token in reversed(before) if token.word in {",", "select", "all"} or _is_hint(token)
        )
        end = before[-1].start if before[-1].word == "as" else alias
        return _one_line(self.sql[opens:end])

    def _rows(self) -> str:
        return f"select * from {VIEW}" if self.having is None else f"select * except ({KEPT}) from {VIEW} where {KEPT}"

    def _text(self, start: int, end: int) -> str:
        """A part of the text with the aggregate's rows in the place of the aggregate."""
        if not start <= self.start < end:
            return self.sql[start:end]
        inside = self._rows() + _lines(self.sql[self.start : self.end])
        return self.sql[start : self.start] + inside + self.sql[self.end : end]

    def _composed(self, ctes: Sequence[str], start: int, query: str) -> str:
        """A query below some of the CTEs, each on its own lines."""
        text, position = "", 0
        for number, name in enumerate(ctes):
            begin, end = self.ctes[name]
            text += _lines(self.sql[position:begin]) + (", " if number else "with ") + self._text(begin, end)
            position = end
        text += _lines(self.sql[position:start])
        between = " " if text and not text.endswith("\n") else ""
        return f"{text}{between}{query}".rstrip()

    def _named_by(self, node: exp.Expr, without: exp.Expr | None = None) -> list[str]:
        """The CTEs that a query names, also by way of others, in the order of the text."""
        found: set[str] = set()
        bodies = {cte.alias.lower(): cte.this for cte in self.tree.ctes}

        def visit(part: exp.Expr) -> None:
            if part is without or isinstance(part, exp.With):
                return
            if isinstance(part, exp.Table) and not part.db and part.name.lower() in bodies:
                name = part.name.lower()
                if name not in found:
                    found.add(name)
                    visit(bodies[name])
            for child in part.iter_expressions():
                visit(child)

        visit(node)
        return [name for name in self.ctes if name in found]

    def _definition(self, cte: exp.Expr) -> tuple[int, int]:
        """From a CTE's name to the bracket that closes it."""
        start, _ = _span(cte.args["alias"].this)
        name = _found(token for token in self.tokens if token.start == start)
        brackets = (
            each for each in self.tokens if each.word == "(" and each.start > start and each.depth == name.depth
        )
        if cte.args["alias"].args.get("columns"):
            _found(brackets)
        return start, self._closing(_found(brackets)).end

    def _brackets(self) -> tuple[int, int]:
        """Between the brackets around the aggregate."""
        place = _place(self.aggregate)
        opened: list[int] = []
        for index, token in enumerate(self.tokens):
            if token.start > place:
                break
            if token.word == "(":
                opened.append(index)
            elif token.word == ")":
                opened.pop()
        around = _found(self.tokens[index] for index in reversed(opened) if self.tokens[index + 1].word == "select")
        return around.end, self._closing(around).start

    def _closing(self, bracket: _Token) -> _Token:
        return _found(
            token
            for token in self.tokens
            if token.word == ")" and token.depth == bracket.depth and token.start > bracket.start
        )


def _found(those: Iterable[T]) -> T:
    """The first of what has to be in the text, if the tree is that of a query as it was written."""
    for each in those:
        return each
    raise _unwritten()


def _unwritten() -> UncutError:
    return UncutError(
        "that cannot be told from the query around it",
        "Write it as SELECT ... FROM ... GROUP BY ..., and give its columns names there.",
    )


def _bracketed() -> UncutError:
    return UncutError("in brackets around the whole query", "Leave the brackets out.")


def _span(name: exp.Expr) -> tuple[int, int]:
    """From where a name begins in the text to the sign after it."""
    if "start" not in name.meta:
        raise _unwritten()
    return int(name.meta["start"]), int(name.meta["end"]) + 1


def _tokens(sql: str) -> list[_Token]:
    found: list[_Token] = []
    depth = 0
    for token in Spark().tokenize(sql):
        word = sql[token.start : token.end + 1].lower()
        depth -= word == ")"
        found.append(_Token(word, token.start, token.end + 1, depth))
        depth += word == "("
    return found


def _is_hint(token: _Token) -> bool:
    return token.word.startswith("/*+")


def _columns(having: exp.Expr) -> Iterator[exp.Column]:
    """The columns of a condition that may be an alias: in an aggregate, or a query of its own, none is."""
    for part in having.walk(prune=lambda node: isinstance(node, exp.Query) or is_aggregate(node)):
        if isinstance(part, exp.Column) and isinstance(part.parts[0], exp.Identifier):
            yield part


def _begin(column: exp.Column) -> int:
    return _span(column.parts[0])[0]


def _is_piped(sql: str, aggregate: exp.Select) -> bool:
    """Whether pipes lead to or from the aggregate: those in brackets that it is not in are text like any other."""
    tokens = _tokens(sql)
    pipes = [token for token in tokens if token.word == "|>"]
    place = _place(aggregate) if pipes else 0

    def between(pipe: _Token) -> list[_Token]:
        return [token for token in tokens if min(pipe.start, place) <= token.start <= max(pipe.start, place)]

    return any(all(token.depth >= pipe.depth for token in between(pipe)) for pipe in pipes)


def _starts(part: exp.Expr) -> Iterator[int]:
    return (int(each.meta["start"]) for each in part.find_all(exp.Identifier) if "start" in each.meta)


def _place(aggregate: exp.Select) -> int:
    """A place in the text that belongs to the aggregate itself, not to a query inside it."""
    parts = [*aggregate.expressions, aggregate.args.get("group"), aggregate.args.get("from_")]
    for part in parts:
        for each in part.walk(prune=lambda node: isinstance(node, exp.Query)) if part is not None else ():
            if isinstance(each, exp.Identifier) and "start" in each.meta:
                return int(each.meta["start"])
    raise _unwritten()


def _one_line(sql: str) -> str:
    """The text without comments, with a space in the place of each gap."""
    words, end = "", 0
    for token in Spark().tokenize(sql):
        words += " " * (token.start > end) + sql[token.start : token.end + 1]
        end = token.end + 1
    return words.strip()


def _lines(text: str) -> str:
    return "\n" * text.count("\n")

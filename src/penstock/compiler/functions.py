"""The project's functions (dbt's functions/) that a stream calls.

Rules
- They are those that its SQL calls, itself or through ephemeral models, and those that these call in turn.
- The spec holds their compiled bodies, and its SQL calls them under names of the stream's own session: what a stream
  runs with is what its spec was hashed with, whatever has become of the functions in the catalog.
- A body that dbt has not compiled is taken as it is when there is nothing in it to compile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from sqlglot.dialects.spark import Spark
from sqlglot.errors import TokenError
from sqlglot.tokenizer_core import Token, TokenType

from penstock.compiler.spec import Function
from penstock.compiler.sqltext import plain_name
from penstock.errors import Location
from penstock.errors.catalogue import DBT_FAILED, FUNCTION_UNFIT
from penstock.project.source import relation_of

_JINJA = ("{{", "{%", "{#")
_SESSION_CATALOG = "spark_catalog"
# Spark knows two kinds; one that is stable within a statement alone is neither.
_VOLATILITY = {"deterministic": " DETERMINISTIC", "non-deterministic": " NOT DETERMINISTIC"}


def called(manifest: Mapping[str, Any], unique_ids: Collection[str]) -> list[Mapping[str, Any]]:
    """The functions of the manifest that these nodes call, each after those that it calls itself."""
    nodes: Mapping[str, Mapping[str, Any]] = manifest.get("nodes") or {}
    functions: Mapping[str, Mapping[str, Any]] = manifest.get("functions") or {}
    seen: set[str] = set()

    def visit(unique_id: str) -> Iterator[Mapping[str, Any]]:
        entry = functions.get(unique_id) or nodes.get(unique_id)
        if entry is None or unique_id in seen:
            return
        seen.add(unique_id)
        for below in sorted((entry.get("depends_on") or {}).get("nodes") or ()):
            inlined = (nodes.get(below, {}).get("config") or {}).get("materialized") == "ephemeral"
            if below in functions or inlined:
                yield from visit(below)
        if unique_id in functions:
            yield entry

    return [function for unique_id in unique_ids for function in visit(unique_id)]


def declared(function: Mapping[str, Any]) -> tuple[str, str]:
    """What stands in CREATE FUNCTION before RETURN, from the arguments on, and after it."""
    name = relation_of(function)
    at = Location(str(function["original_file_path"])) if function.get("original_file_path") else None
    config = function.get("config") or {}
    language, kind = function.get("language") or "sql", str(config.get("type") or "scalar")
    if language != "sql" or kind != "scalar":
        raise FUNCTION_UNFIT.error(f"{name} is {_a(kind if language == 'sql' else language)} function.", at=at)
    body = _body(function)
    if body is None:
        raise DBT_FAILED.error(f"{name} has not been compiled by dbt.", at=at, hint="Run 'dbt compile' first.")
    arguments = ", ".join(f"{each['name']} {each['data_type']}" for each in function.get("arguments") or ())
    volatility = _VOLATILITY.get(str(config.get("volatility")), "")
    return f"({arguments}) RETURNS {function['returns']['data_type']}{volatility}", body.strip()


def _body(function: Mapping[str, Any]) -> str | None:
    body = function.get("compiled_code")
    if body is None and not any(sign in str(function.get("raw_code")) for sign in _JINJA):
        body = function.get("raw_code")
    return None if body is None else str(body)


def uncompiled(manifest: Mapping[str, Any], unique_ids: Collection[str]) -> list[Mapping[str, Any]]:
    """The functions that these nodes call and whose bodies dbt has still to compile."""
    return [function for function in called(manifest, unique_ids) if _body(function) is None]


def functions_of(manifest: Mapping[str, Any], unique_id: str) -> tuple[Function, ...]:
    """The functions that a model calls, as its session has to know them, in the order in which they are made."""
    found: list[Function] = []
    for each in called(manifest, [unique_id]):
        name = relation_of(each)
        signature, body = declared(each)
        known = {other.called for other in found}
        session_name = plain_name(name)
        while session_name in known:
            session_name += "_"
        arguments = [str(argument["name"]) for argument in each.get("arguments") or ()]
        body = _under_own_name(renamed(body, found), name.rpartition(".")[2], session_name, arguments)
        found.append(Function(name=name, called=session_name, signature=signature, body=body))
    return tuple(found)


def renamed(sql: str, functions: Sequence[Function]) -> str:
    """The SQL with the names of the session in place of those of the catalog; lines stay where they are."""
    names = {tuple(each.name.lower().split(".")): each.called for each in functions}
    tokens = _tokens(sql) if names else []
    changes: list[tuple[Token, Token, str]] = []
    for at in range(len(tokens) - 3):
        schema, dot, name, bracket = tokens[at : at + 4]
        found = names.get((schema.text.lower(), name.text.lower()))
        if found is None or dot.token_type is not TokenType.DOT or bracket.token_type is not TokenType.L_PAREN:
            continue
        if not _follows_dot(tokens, at):
            changes.append((schema, name, found))
        elif at > 1 and tokens[at - 2].text.lower() == _SESSION_CATALOG:
            changes.append((tokens[at - 2], name, found))
    return _changed(sql, changes)


def _under_own_name(body: str, name: str, session_name: str, arguments: Sequence[str]) -> str:
    """The body with its arguments (`with_tax.price`) qualified by the name that the function has in the session."""
    tokens, known = _tokens(body), {each.lower() for each in arguments}
    return _changed(body, [
        (first, first, session_name)
        for at, (first, dot, last) in enumerate(zip(tokens, tokens[1:], tokens[2:], strict=False))
        if first.text.lower() == name.lower() and dot.token_type is TokenType.DOT and last.text.lower() in known
        and not _follows_dot(tokens, at)
    ])  # fmt: skip


def _changed(sql: str, changes: Sequence[tuple[Token, Token, str]]) -> str:
    for first, last, text in reversed(changes):
        start, end = first.start, last.end + 1
        sql = sql[:start] + text + "\n" * sql.count("\n", start, end) + sql[end:]
    return sql


def _follows_dot(tokens: Sequence[Token], at: int) -> bool:
    return at > 0 and tokens[at - 1].token_type is TokenType.DOT


def _tokens(sql: str) -> list[Token]:
    try:
        return list(Spark().tokenize(sql))
    except TokenError:
        return []  # Spark says what is wrong with it


def _a(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"

"""What a SQL statement writes: the relations that it would change, make or drop. Pure.

A statement that cannot be read here is left to Spark, which refuses to write into a view by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

_ROWS = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.TruncateTable)
_SHAPE = (exp.Create, exp.Drop, exp.Alter)
_WORDS = ("insert", "update", "delete", "merge", "truncate", "create", "drop", "alter")
_ABOUT = ("show", "describe", "desc", "explain")  # statements that only tell of others

logging.getLogger("sqlglot").setLevel(logging.ERROR)  # it warns of what it does not know; Spark will know


def writes(sql: str) -> dict[str, str]:
    """Relation, as it is written -> the word of the statement that changes it: insert, merge, drop, ..."""
    lower = sql.lower()
    if lower.lstrip().startswith(_ABOUT) or not any(word in lower for word in _WORDS):
        return {}
    try:
        trees = Spark().parse(sql)
    except SqlglotError:
        return {}
    found: dict[str, str] = {}
    for tree in trees:
        for node in tree.find_all(*_ROWS, *_SHAPE) if tree is not None else ():
            found |= dict.fromkeys(_targets(node), "truncate" if node.key == "truncatetable" else node.key)
    return found


def _targets(node: exp.Expr) -> Iterable[str]:
    if isinstance(node, exp.TruncateTable):
        tables = node.expressions
    elif isinstance(node, _ROWS):
        tables = [node.this.this if isinstance(node.this, exp.Schema) else node.this]
    elif node.args.get("kind") not in ("TABLE", "VIEW") or node.find(exp.TemporaryProperty) is not None:
        tables = []
    else:
        tables = [node.find(exp.Table)]
    for table in tables:
        if isinstance(table, exp.Table):
            yield ".".join(part.name for part in table.parts[-2:])  # the catalog is Spark's own

"""How the records of a topic become the rows of a source: Spark SQL in two steps.

Rules
- The first step reads the records as Spark's Kafka reader gives them (key, value, topic, partition, offset, timestamp,
  headers), from a relation of the caller's choice: the same text serves a stream, a view over the topic and a replay.
  It adds the decoded key and value and how good the record is (`penstock.compiler.quality`).
- A key or value is decoded once, with a schema that holds just the fields that the wanted columns name. A format whose
  decoding needs more than SQL finds its struct made already, as a column of the records.
- The second step makes the columns of those records that are rows. An empty or bad record never is; whether a partly
  bad one is, is the source's or the model's choice.
- No field is part of another one, and a field has one type: the reading of sources sees to it.
- Computed columns come last, each after those it uses; then all are put into the declared order.
"""

from __future__ import annotations

from collections.abc import Collection

from penstock.compiler.origins import TOMBSTONE, decoder, expression, struct_of
from penstock.compiler.quality import BAD, GOOD, PARTLY, decoded_part, problem, quality, raising
from penstock.compiler.spec import Column, KafkaInput
from penstock.compiler.sqltext import call, indented, listed, text
from penstock.project.expressions import columns_of, in_order
from penstock.project.sparktypes import quoted

RECORD = ("topic", "partition", "offset", "timestamp", "key", "headers", "value")


def select(source: KafkaInput, records: str, *, wanted: Collection[str] | None = None, nulls: bool = False) -> str:
    """The rows of the source, as one SELECT from `records`.

    `wanted` are the columns that are used (all when None). With `nulls`, a record of which nothing could be decoded is
    a row of nulls, and no record is left out.
    """
    if nulls:
        chosen = _chosen(source, wanted)
        return _columns(chosen, _decoded(source, chosen, records, judged=False))
    return rows(source, f"(\n{indented(judged(source, records, wanted=wanted))}\n)", wanted=wanted)


def judged(source: KafkaInput, records: str, *, wanted: Collection[str] | None = None) -> str:
    """The records with what `rows` needs: their decoded keys and values, and their quality."""
    used = _chosen(source, wanted) if source.on_bad_record == "null" else source
    decoded = _decoded(source, used, records, judged=True)
    if source.on_bad_record != "fail":
        return _with(f"{quality(source, used)} as quality", decoded)
    # Here, below everything else, no condition of the model can come before it.
    query = _with(f"{quality(source, used)} as judgement", decoded)
    failing = call("if", [f"judgement in ({text(BAD)}, {text(PARTLY)})", raising(source), "judgement"])
    return _with(f"{failing} as quality", f"from (\n{indented(query)}\n)")


def rows(source: KafkaInput, judged: str, *, wanted: Collection[str] | None = None) -> str:
    """The rows of the source, as a SELECT from judged records."""
    kept = f"in ({text(GOOD)}, {text(PARTLY)})" if source.on_bad_record == "null" else f"= {text(GOOD)}"
    # Where a message without a value deletes, it is a row.
    deletes = " or `value` is null" if any(column.origin == TOMBSTONE for column in source.columns) else ""
    return _columns(_chosen(source, wanted), f"from {judged}\nwhere quality {kept}{deletes}")


def columns_decoded(source: KafkaInput, wanted: Collection[str] | None = None) -> tuple[Column, ...]:
    """The columns that a record is judged by, and that are therefore decoded."""
    return (_chosen(source, wanted) if source.on_bad_record == "null" else source).columns


def needs_headers(source: KafkaInput, wanted: Collection[str] | None = None) -> bool:
    return source.rejects or any(column.origin.startswith("header") for column in columns_decoded(source, wanted))


def rejected(source: KafkaInput, judged: str) -> str:
    """The records that are bad or partly bad, as a SELECT from judged records: what the quarantine table holds."""
    inner = f"from {judged}\nwhere quality in ({text(BAD)}, {text(PARTLY)})"
    query = _with(f"{problem(source)} as problem", inner)
    return f"select\n{indented(listed(_rejected(source)))}\nfrom (\n{indented(query)}\n)"


def _rejected(source: KafkaInput) -> list[str]:
    return [
        *(f"`{name}`" for name in RECORD),
        "problem.error as error",
        "problem.column as column_at_fault",
        f"{text(source.relation)} as source",
        "current_timestamp() as quarantined_at",
        # How often and by which replay it was tried, and when it left.
        "0 as attempts",
        "cast(null as bigint) as replay",
        "cast(null as timestamp) as replayed_at",
    ]


def _with(column: str, origin: str) -> str:
    return f"select\n{indented(listed(['*', column]))}\n{origin}"


def _columns(chosen: KafkaInput, origin: str) -> str:
    """The SELECT of the chosen columns, given its FROM and WHERE."""
    computed = _computed(chosen)
    query = f"select\n{indented(listed(_expressions(chosen)))}\n{origin}"
    for name, made in computed:
        query = f"select *, {made} as {quoted(name)}\nfrom (\n{indented(query)}\n)"
    if not _in_place(chosen, computed):
        names = ", ".join(quoted(column.name) for column in chosen.columns)
        query = f"select {names}\nfrom (\n{indented(query)}\n)"
    return query


def _decoded(source: KafkaInput, chosen: KafkaInput, records: str, *, judged: bool) -> str:
    """FROM: the records with their decoded keys and values."""
    structs = []
    for name in ("key", "value"):
        decoded = decoder(source, name).struct(decoded_part(source, chosen, name), judged=judged)
        if decoded is not None:
            structs.append(f"{decoded} as {struct_of(name)}")
    if not structs:
        return f"from {records}"
    inner = f"select\n{indented(listed(['*', *structs]))}\nfrom {records}"
    return f"from (\n{indented(inner)}\n)"


# -- which columns ----------------------------------------------------------------------------------------------------


def _chosen(source: KafkaInput, wanted: Collection[str] | None) -> KafkaInput:
    return source.model_copy(update={"columns": _wanted(source, wanted)})


def _wanted(source: KafkaInput, wanted: Collection[str] | None) -> tuple[Column, ...]:
    """The wanted columns and those that they are computed from, in the declared order; all when none is wanted."""
    if wanted is None:
        return source.columns
    found = with_origins(source, wanted)
    return tuple(column for column in source.columns if column.name in found) or source.columns


def with_origins(source: KafkaInput, names: Collection[str]) -> frozenset[str]:
    """The columns of these names, and those that they are computed from."""
    known = {column.name.lower(): column.name for column in source.columns}
    exprs = {column.name: column.expr for column in source.columns if column.expr is not None}
    found: set[str] = set()
    pending = [known[name.lower()] for name in names if name.lower() in known]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending.extend(columns_of(exprs[name], known) if name in exprs else ())
    return frozenset(found)


# -- columns ----------------------------------------------------------------------------------------------------------


def _expressions(source: KafkaInput) -> list[str]:
    """An expression for each column that is not computed."""
    return [f"{expression(column)} as {quoted(column.name)}" for column in source.columns if column.expr is None]


def _computed(source: KafkaInput) -> list[tuple[str, str]]:
    """Name and expression of each computed column, each after those that it needs."""
    computed = {column.name: column for column in source.columns if column.expr is not None}
    known = {column.name.lower(): column.name for column in source.columns}
    uses = {name: columns_of(str(column.expr), known) for name, column in computed.items()}
    # The line end is for an expression that ends with a comment.
    return [(name, f"cast({computed[name].expr}{_end(computed[name])} as {computed[name].type})")
            for name in in_order(uses)]  # fmt: skip


def _end(column: Column) -> str:
    return "\n" if "--" in str(column.expr) else ""


def _in_place(source: KafkaInput, computed: list[tuple[str, str]]) -> bool:
    """Whether the computed columns come out in the declared order by themselves: they are the last, in their order."""
    names = [column.name for column in source.columns]
    made = [name for name, _ in computed]
    return names[len(names) - len(made) :] == made

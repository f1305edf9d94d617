"""`penstock describe`: one source or table, with all that is known of it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from penstock.cli import facts, output, schema_facts, source_views
from penstock.cli.manifest import current_manifest
from penstock.cli.relations import NOT_DEPLOYED, SOURCE_TABLE, deployed, dynamic_tables, pick, stream_sources, upstream
from penstock.cli.session import Session, command
from penstock.errors import PenstockError

app = typer.Typer()
_ON_BAD = {
    "null": "what does not fit is null",
    "skip": "a message that does not fit is no row",
    "quarantine": "a message that does not fit is no row, and is kept",
    "fail": "a message that does not fit stops the streams",
}
_AS_VIEW = {
    source_views.CURRENT: "",
    source_views.OUTDATED: " (as it was before the last change; the next 'dbt run' brings it up to date)",
    source_views.MISSING: " (from the first query or 'dbt run' on)",
}


def look(session: Session, name: str, now: float) -> tuple[dict[str, Any], PenstockError | None]:
    """The facts, and the error that kept the broker's from being among them."""
    streams = {stream.name: stream for stream in deployed(session)}
    if name in streams and streams[name].kind != SOURCE_TABLE:
        # A running table is described whatever state the project's files are in.
        return facts.table_facts(streams[name], [*streams.values()], session.paths), None
    manifest = current_manifest(session)
    sources, tables = stream_sources(manifest), dynamic_tables(manifest)
    found = pick(name, sorted({*sources, *tables, *streams}))
    known = [*streams.values()]
    if found in streams and found not in sources:
        return facts.table_facts(streams[found], known, session.paths), None
    if found in tables:
        return facts.undeployed_facts(found, tables[found], upstream(tables[found], manifest), known), None
    from penstock.project.source import read_source

    source = read_source(sources[found], session.project)
    declared = facts.source_facts(source, sources[found], known)
    in_lock = f"{sources[found].get('source_name')}.{sources[found]['name']}"
    declared["schemas"] = schema_facts.pinned(source, in_lock, session.paths)
    if source.is_table:
        declared = facts.source_table_facts(declared, streams.get(found), session.paths)
    else:
        declared |= {"view": source_views.state(session, sources[found])}
    with session.ui.working("asking the broker"):
        asked, problem = facts.with_broker(declared, source, session.settings, session.paths, now)
    with session.ui.working("asking the schema registry"):
        asked, other = schema_facts.with_registry(asked, source, session.settings, session.paths)
    return asked, problem or other


# -- on a terminal ----------------------------------------------------------------------------------------------------
def view(found: dict[str, Any], now: float) -> Group:
    of_source = "topic" in found
    parts: list[RenderableType] = [_pairs(_source(found, now) if of_source else _table(found, now))]
    if found.get("columns"):
        parts += [Text(), _columns(found["columns"])]
    if found.get("schemas"):
        titles = ("PART", "TYPE", "SCHEMA FROM", "PINNED", "IN THE REGISTRY")
        parts += [Text(), _grid(titles, schema_facts.rows(found["schemas"]))]
    if found.get("topics"):
        parts += [Text(), _partitions(found["topics"], now)]
    if found.get("inputs"):
        rows = [(each["relation"], each["kind"] or "-", each["reads"] or "-") for each in found["inputs"]]
        parts += [Text(), _grid(("INPUT", "KIND", "READ"), rows)]
    if found["read_by"]:
        parts += [Text(), _readers(found["read_by"])]
    return Group(*parts)


def _source(found: dict[str, Any], now: float) -> list[tuple[str, str | Text]]:
    topic = found["topic"] or f"all that match {found['topic_pattern']}"
    if found["partitions_read"] != "all":
        topic += f", partitions {', '.join(map(str, found['partitions_read']))}"
    messages, rate = found["messages"], found["rows_per_s"]
    return [
        *_head(found),
        *_behind(found, now),
        ("topic", topic),
        ("broker", found["broker"] or "-"),
        ("key", _format(found["key"])),
        ("value", _format(found["value"])),
        ("start", _start(found["start"])),
        ("watermark", _watermark(found["watermark"])),
        ("bad records", f"{found['on_bad_record']}: {_ON_BAD[found['on_bad_record']]}"),
        *_query(found),
        ("messages", "-" if messages is None else f"{messages:,}"),
        ("latest message", _moment(found["latest_message_at"], now)),
        ("rows per second", "-" if rate is None else f"{output.rate(rate)} over the last minute"),
        ("records read", _records(found["records"])),
        ("last error", _error(found["last_error"])),
    ]


def _behind(found: dict[str, Any], now: float) -> list[tuple[str, str | Text]]:
    """Of a source table: its key and the query that keeps it."""
    if found["kind"] != SOURCE_TABLE:
        return []
    key = ("primary key", ", ".join(found["primary_key"]))
    query, stored = found["query"], found.get("table")
    if query is None:
        return [key, ("query", "not deployed: 'penstock run' deploys it")]
    state = output.state_text(found["state"])
    return [
        key,
        ("query", Text.assemble(f"{query['stream']}, generation {query['generation']}, ", state)),
        ("lag", output.lag(query["lag_rows"], query["lag_seconds"])),
        ("last batch", _moment(query["last_batch_at"], now)),
        ("rows", "-" if not stored or stored["rows"] is None else f"{stored['rows']:,}"),
        ("size", f"{stored['bytes']:,} bytes in {stored['files']:,} files" if stored else "-"),
        ("checkpoint", query["checkpoint"]),
        ("job", query["job"] or "-"),
    ]


def _records(counts: dict[str, Any] | None) -> str:
    if counts is None:
        return "-"
    kinds = (("empty", "empty"), ("bad", "bad"), ("partly_bad", "partly bad"))
    return ", ".join([f"{counts['records']:,}", *(f"{counts[name]:,} {shown}" for name, shown in kinds)])


def _query(found: dict[str, Any]) -> list[tuple[str, str | Text]]:
    return [("query", f"select * from {found['name']}{_AS_VIEW[found['view']]}")] if "view" in found else []


def _table(found: dict[str, Any], now: float) -> list[tuple[str, str | Text]]:
    if found["state"] == NOT_DEPLOYED:
        return [*_head(found), ("state", "not deployed: 'dbt run' deploys it")]
    state = output.state_text(found["state"])
    if found["wanted"] != found["state"]:
        state.append(f" (wanted {found['wanted']})")
    mode = found["mode"] or "-"
    stored = found["table"]
    return [
        *_head(found),
        ("stream", f"{found['stream']}, generation {found['generation']}"),
        ("state", state),
        ("mode", f"{mode} by {', '.join(found['key'])}" if found["key"] else mode),
        *([("full refresh", found["full_refresh"])] if found["full_refresh"] else []),
        *([("published", _published(found["published"]))] if found["published"] else []),
        *([("size of state", output.size(found["state_bytes"]))] if found["state_bytes"] else []),
        ("lag", output.lag(found["lag_rows"], found["lag_seconds"])),
        ("rows per second", f"{output.rate(found['rows_in_per_s'])} in, {output.rate(found['rows_out_per_s'])} out"),
        ("last batch", _moment(found["last_batch_at"], now)),
        ("rows", "-" if not stored or stored["rows"] is None else f"{stored['rows']:,}"),
        ("size", f"{stored['bytes']:,} bytes in {stored['files']:,} files" if stored else "-"),
        ("version", f"{stored['version']}, {_moment(stored['changed_at'], now)}" if stored else "-"),
        ("files", stored["path"] if stored else "-"),
        *((f"read of {each['source']}", _records(each)) for each in found["records"]),
        *((f"expects {each['name']}", _expectation(each, now)) for each in found["expectations"]),
        ("checkpoint", found["checkpoint"]),
        ("job", found["job"] or "-"),
        ("last error", _error(found["last_error"])),
    ]


def _expectation(each: dict[str, Any], now: float) -> str:
    last = f", the last {_moment(each['last_at'], now)}" if each["last_at"] is not None else ""
    return f"{each['expect']}, else {each['on_violation']}: {each['violations']:,} rows otherwise{last}"


def _published(publish: dict[str, Any]) -> str:
    key = f"key {', '.join(publish['key'])} as {publish['key_format']}" if publish["key"] else "no key"
    return f"topic {publish['topic']}, {key}, value as {publish['value_format']}, {publish['delivery']}"


def _head(found: dict[str, Any]) -> list[tuple[str, str | Text]]:
    kind = f"{found['kind']}, {'read-only' if found['read_only'] else 'written by its stream'}"
    return [("name", Text(found["name"], style="bold")), ("kind", kind), ("file", found["file"] or "-")]


def _pairs(pairs: Sequence[tuple[str, str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False, show_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in pairs:
        table.add_row(name, value if isinstance(value, Text) else Text(value))
    return table


def _grid(titles: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> Table:
    table = output.grid(*titles, right=right, wraps=titles[-1:])
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _columns(columns: Sequence[dict[str, Any]]) -> Table:
    if "origin" not in columns[0]:
        return _grid(("COLUMN", "TYPE"), [(each["name"], each["type"]) for each in columns])
    rows = [(each["name"], each["type"], each["expr"] or each["origin"]) for each in columns]
    return _grid(("COLUMN", "TYPE", "FROM"), rows)


def _partitions(topics: Sequence[dict[str, Any]], now: float) -> Table:
    titles = ("TOPIC", "PARTITION", "BEGIN", "END", "MESSAGES", "LATEST", "KEPT FOR")
    rows = [
        (topic["topic"], *(str(part[name]) for name in ("partition", "begin", "end", "messages")),
         output.ago(part["latest_message_at"], now), topic["retention"])
        for topic in topics for part in topic["partitions"]
    ]  # fmt: skip
    return _grid(titles, rows, right=titles[1:6])


def _readers(readers: Sequence[dict[str, Any]]) -> Table:
    table = output.grid("READ BY", "STATE", "LAG", "LAST ERROR")
    for each in readers:
        lag = output.lag(each["lag_rows"], None)
        table.add_row(Text(each["stream"]), output.state_text(each["state"]), lag, each["last_error"] or "-")
    return table


def _format(settings: dict[str, Any]) -> str:
    more = ", ".join(f"{name} {value!r}" for name, value in settings.items() if name != "format")
    return f"{settings['format']} ({more})" if more else str(settings["format"])


def _start(start: str | dict[str, Any]) -> str:
    if isinstance(start, str):
        return start
    if "timestamp" in start:
        return str(output.cell(start["timestamp"]))
    return ", ".join(f"partition {number} at {at}" for number, at in start["offsets"].items())


def _watermark(watermark: dict[str, str] | None) -> str:
    return f"{watermark['column']}, rows may be {watermark['delay']} late" if watermark else "-"


def _moment(at: float | None, now: float) -> str:
    if at is None:
        return "-"
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC, {output.ago(at, now)}"


def _error(error: dict[str, Any] | None) -> Text:
    return Text(output.coded(error["code"], error["message"]), style="red") if error else Text("-")


@command(
    app,
    "describe",
    examples=[
        "penstock describe shop.clicks",
        "penstock describe clicks_clean",
        "penstock describe clicks --output json | jq .latest_message_at",
    ],
    codes=(0, 1, 2, 4),
    profile=True,
)
def describe(
    session: Session,
    name: Annotated[str, typer.Argument(help="A source or a table, with or without its schema.")],
) -> int:
    """Describe a source stream, a source table or a dynamic table.

    Of a source: topic, partitions with offsets, retention, columns with their origin, formats, schemas with their ids
    and versions, start, watermark, latest message, rows per second and the streams that read it; of a source table also
    its primary key and the query behind it. Of a table: its stream, state, inputs, key, columns, rows, size, checkpoint
    and job. The engine is not needed. When the broker does not answer, the rest is shown, and the exit
    code is that of the error.
    """
    now = time.time()
    found, problem = look(session, name, now)
    if session.ui.is_json:
        session.ui.data(found)
    else:
        session.ui.out.print(view(found, now))
    return int(problem.kind.exit_code) if problem else 0

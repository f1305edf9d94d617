"""`penstock explain`: how a dynamic table is kept up to date, and why so."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from penstock.cli import output
from penstock.cli.compile import read_manifest
from penstock.cli.plan import project_tables
from penstock.cli.relations import pick
from penstock.cli.session import Session, command

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec

app = typer.Typer()


def explained(spec: StreamSpec, deployed: StreamSpec | None = None) -> dict[str, Any]:
    """How the table is kept. What the engine found out at the deployment of the same query counts as well."""
    from penstock.compiler.plan import Verdict, plan_change

    told = spec
    if deployed is not None and deployed.refused and plan_change(deployed, spec).verdict is not Verdict.REBUILD:
        told = spec.as_full(str(deployed.reason))
    return {
        "stream": told.name,
        "path": told.path,
        "refresh_mode": told.refresh_mode,
        "refresh": "full" if told.is_full else "incremental",
        "reason": told.reason or _why_incremental(told),
        "rows": _rows(told),
        "keys": list(told.output.keys),
        "when": _when(told),
        "state": _state(told),
        "published": _published(told),
        "reading": reading(told),
        "inputs": [{"relation": each.relation, "read": read_as(each, told)} for each in told.inputs],
        "warnings": list(told.warnings),
    }


def _why_incremental(spec: StreamSpec) -> str:
    return "each batch of new rows is enough to keep the table right."


def _rows(spec: StreamSpec) -> str:
    match spec.output.mode.value:
        case "replace":
            return "all are replaced at once, in one commit"
        case "upsert" if spec.output.keys:
            gone = "; one that no longer passes the filter is deleted" if spec.follow is not None else ""
            return f"replaced by {', '.join(spec.output.keys)}{gone}"
        case "upsert":
            return "one, replaced"
        case _:
            return "appended"


def _when(spec: StreamSpec) -> str:
    if spec.is_real_time:
        return "at once, each message by itself (mode: real_time)"
    window = output.span(spec.trigger.time_window_ms / 1000)
    if spec.is_full:
        return f"when an input changed, at most once in {window}"
    # Messages wait in their topic; of a table, what is there is taken.
    buffered = spec.trigger.buffer_limit > 1 and any(each.kind == "kafka" for each in spec.inputs)
    held = f"when {spec.trigger.buffer_limit} messages wait, or after {window}"
    if all(each.kind != "table_stream" for each in spec.inputs):
        return held if buffered else "at once"
    looks = output.span(spec.looks_every_ms / 1000)
    return f"every {looks}; of a topic {held}" if buffered else f"every {looks}"


def _state(spec: StreamSpec) -> str:
    if not spec.stateful:
        return "none"
    if spec.output.mode.value == "upsert":
        return "a row for each key"
    return "rows that may still meet others"


def reading(spec: StreamSpec) -> str:
    """Whether the topic is read once for several tables."""
    from penstock.compiler.sharing import why_alone

    why = why_alone(spec)
    return (
        "shared with other tables that read the topic in the same way, if they are many"
        if why is None
        else f"alone: {why}"
    )


def _published(spec: StreamSpec) -> str | None:
    """To which topic rows go, and as what."""
    if (publish := spec.publish) is None:
        return None
    key = f"key {', '.join(publish.key)} as {publish.key_format}" if publish.key else "no key"
    gone = "; a row that is gone is a message without a value" if spec.follow is not None else ""
    table = "" if publish.table else "; there is no table"
    delivery = publish.delivery.replace("_", " ")
    return f"topic {publish.topic!r}, {key}, value as {publish.value_format}, {delivery}{gone}{table}"


def read_as(item: Any, spec: StreamSpec) -> str:
    """How an input is read."""
    if item.kind == "kafka":
        return f"{item.topics}, {'all that it holds' if spec.is_full else 'its new messages'}"
    if item.kind == "table" or spec.is_full:
        return "as it stands"
    return "its changes" if item.rows == "upsert" else "its new rows"


def view(found: dict[str, Any]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    pairs = [
        ("table", f"{found['stream']} ({found['path']})"),
        ("refresh", f"{found['refresh']} (refresh_mode: {found['refresh_mode']})"),
        ("why", found["reason"]),
        ("rows", found["rows"]),
        ("written", found["when"]),
        ("state", found["state"]),
        *([("published", found["published"])] if found["published"] else []),
        ("reading", found["reading"]),
        *(("reads" if not number else "", f"{each['relation']}: {each['read']}")
          for number, each in enumerate(found["inputs"])),
    ]  # fmt: skip
    for name, value in pairs:
        table.add_row(name, Text(value))
    for warning in found["warnings"]:
        table.add_row(Text("warning", style="yellow"), Text(warning))
    return table


@command(
    app,
    "explain",
    examples=["penstock explain top_items", "penstock explain shop.top_items --output json"],
    codes=(0, 2),
    profile=True,
)
def explain(
    session: Session, model: Annotated[str, typer.Argument(help="The model, by its name or as schema.name.")]
) -> None:
    """Explain how a dynamic table is kept up to date: incrementally or by full refresh, and why.

    Shows what its inputs are read as, when it is written, by which key rows are replaced, what state is kept, and
    warnings with their cure. Needs no broker, no engine and no Java; what Spark said when it was deployed counts, too.
    """
    from penstock.compiler import compile_model
    from penstock.control.deployed import spec_of

    ui = session.ui
    with ui.working("dbt compiles the project"):
        manifest = read_manifest(session)
    tables = {relation: unique_id for unique_id, relation in project_tables(manifest).items()}
    spec = compile_model(manifest, tables[pick(model, sorted(tables))], project_dir=session.project)
    deployed = None
    if session.has_store():
        with session.store() as store:
            want = store.find_desired(spec.name)
            deployed = spec_of(want) if want is not None else None
    found = explained(spec, deployed)
    if ui.is_json:
        ui.data(found)
    else:
        ui.show(view(found))

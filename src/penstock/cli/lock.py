"""`penstock lock`: the schemas that sources are read with, pinned in penstock.lock."""

from __future__ import annotations

import difflib
from typing import Annotated, Any

import typer

from penstock.cli import output
from penstock.cli.manifest import current_manifest
from penstock.cli.session import Session, command

app = typer.Typer()


@command(
    app,
    "lock",
    examples=["penstock lock", "penstock lock --check", "penstock lock --update && git diff penstock.lock"],
    codes=(0, 1, 2, 4),
    profile=True,
)
def lock(
    session: Session,
    check: Annotated[bool, typer.Option("--check", help="Write nothing; fail if --update would change it.")] = False,
    update: Annotated[bool, typer.Option("--update", help="Take the latest schemas of the registry.")] = False,
) -> int:
    """Pin the schemas of Avro and Protobuf sources in penstock.lock, for version control.

    Without options, what is missing is added and what is pinned stays as it is. `--check` compares the file with the
    project and the registry, shows the difference and ends with 1 if there is any: for CI. `--update` takes the
    registry's latest schemas; streams are changed by the next 'penstock run'.
    """
    from penstock.control.locking import Locker
    from penstock.errors.catalogue import LOCK_DIFFERS, USAGE
    from penstock.project.lockfile import FILE, render_lock, write_lock

    if check and update:
        raise USAGE.error("--check and --update do not go together.")
    manifest = current_manifest(session)
    sources = list(manifest["sources"].values())
    with session.ui.working("reading the schemas"):
        locker = Locker(session.project, session.settings().schema_registry.options)
        found = locker.locking(sources, update=check or update)
    if not check:
        write_lock(session.project, found.after)
    changes = [_change(each) for each in found.changes]
    if session.ui.is_json:
        session.ui.data({"file": FILE, "written": bool(changes) and not check, "changes": changes})
    elif changes:
        table = output.grid("SOURCE", "PART", "WHAT", "BEFORE", "AFTER")
        for each in changes:
            table.add_row(each["source"], each["part"], each["what"], each["before"] or "-", each["after"] or "-")
        session.ui.show(table)
    else:
        session.ui.say(f"{FILE} is up to date." if found.after.sources else "No source has a schema to pin.")
    if not check or not changes:
        return 0
    if not session.ui.is_json:
        before, after = (render_lock(each).splitlines() for each in (found.before, found.after))
        lines = difflib.unified_diff(before, after, FILE, "registry and files", lineterm="", n=2)
        session.ui.note("\n".join(line for line in lines if not _is_binary(line)))
        session.ui.error(LOCK_DIFFERS.error(f"{FILE} differs in {len(changes)} of its schemas."))
    return int(LOCK_DIFFERS.exit_code)


def _change(change: Any) -> dict[str, Any]:
    return {
        "source": change.source,
        "part": change.part,
        "what": change.what,
        "before": _shown(change.before),
        "after": _shown(change.after),
    }


def _shown(part: Any) -> str | None:
    """Where the schemas of a part are from: `orders-value version 3 (id 7)`, or a file."""
    if part is None:
        return None
    places = [
        f"{each.subject} version {each.version} (id {each.id})" if each.subject else each.file or "the source itself"
        for each in part.types
    ]
    return ", ".join(dict.fromkeys(places))


def _is_binary(line: str) -> bool:
    word = line[1:].strip()
    return len(word) > 60 and " " not in word and ":" not in word

"""`penstock replay`: quarantined records that fit by now go where they belong; recorded ones into a topic."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.session import Session, command
from penstock.errors.catalogue import USAGE

app = typer.Typer()


@command(
    app,
    "replay",
    examples=[
        "penstock replay shop.clicks --dry-run",
        "penstock replay shop.clicks",
        "penstock replay clicks --where \"column_at_fault = 'price'\"",
        "penstock replay --file tests/streams/fixtures/shop.clicks.jsonl.gz --topic clicks",
    ],
    codes=(0, 1, 2, 4),
    profile=True,
)
def replay(
    session: Session,
    source: Annotated[
        str | None, typer.Argument(help="The source whose quarantine is replayed, with or without its schema.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Only these records: a condition on the columns of the quarantine.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be replayed.")] = False,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A fixture of 'penstock record', in place of a quarantine.")
    ] = None,
    topic: Annotated[str | None, typer.Option(help="The topic that the fixture is written into.")] = None,
    create: Annotated[bool, typer.Option("--create", help="Make the topic if it is not there.")] = False,
) -> int:
    """Replay the quarantined records of a source, or write recorded messages into a topic.

    Correct the source and deploy with 'dbt run' first. Every record that has not been replayed is decoded again as the
    source is declared now: if it fits, it goes to the streams that passed it, once, however often the command is run
    or cut short; if it does not, it stays in quarantine, with what is wrong with it now.

    With --file, the messages of a fixture ('penstock record') are written into a topic of the profile's broker, with
    their keys, headers, times and partitions. Schemas are registered under the same subjects, and messages name the
    ids that they have there.
    """
    from penstock.control.quarantine import replay as run

    ui = session.ui
    if file is not None:
        if source is not None or where is not None or topic is None:
            raise USAGE.error("--file wants --topic, and neither a source nor --where.")
        return _fixture(session, file, topic, dry_run=dry_run, create=create)
    if source is None or topic is not None or create:
        raise USAGE.error("Name a source, or a fixture with --file and --topic.")
    with session.store() as store, ui.working(f"replaying {source}") as step:
        found = run(store, source, where=where, dry_run=dry_run, progress=step)
    if ui.is_json:
        ui.data(found)
        return 0
    does = "would be replayed" if dry_run else "replayed"
    ui.say(f"{found['source']}: {found['replayed']:,} records {does}, {found['still_bad']:,} still do not fit.")
    if found["streams"]:
        table = output.grid("STREAM", "RECORDS", right=("RECORDS",))
        for each in found["streams"]:
            table.add_row(each["stream"], f"{each['records']:,}")
        ui.show(table)
    return 0


def _fixture(session: Session, file: Path, topic: str, *, dry_run: bool, create: bool) -> int:
    from penstock.control.inputs import Access
    from penstock.kafka.admin import resolve_bootstrap
    from penstock.kafka.security import effective
    from penstock.registry.address import access
    from penstock.registry.register import Registrar
    from penstock.testing import fixtures, recording

    ui = session.ui
    recorded = fixtures.read(file)
    count = len(recorded.records)
    if not dry_run:
        settings, paths = session.settings(), session.paths
        options = effective({}, settings.kafka.options, own_broker=False, base=paths.project)
        broker = Access(resolve_bootstrap(None, settings.kafka.bootstrap, paths), options)
        registry = None
        if recorded.schemas:
            place = access({}, settings.schema_registry.options, paths)
            registry = Registrar(place.url, place.options)
        with ui.working(f"writing {file.name} into {topic}"):
            count = recording.replay(recorded, topic, broker, registry, create=create)
    if ui.is_json:
        ui.data({"file": str(file), "topic": topic, "messages": count, "dry_run": dry_run})
    else:
        ui.say(f"{count:,} messages {'would be ' if dry_run else ''}written into {topic}.")
    return 0

"""`penstock record`: a slice of a real topic as a fixture for stream tests."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli import output
from penstock.cli.session import Session, command

app = typer.Typer()
LIMIT = 1000


@command(
    app,
    "record",
    examples=[
        "penstock record shop.clicks --from '10 minutes'",
        "penstock record clicks --from '2026-01-31 10:00' --to '2026-01-31 10:05' --mask user_id",
        "penstock record clicks --limit 50 --mask user_id --mask trace --file tests/streams/fixtures/monday.jsonl.gz",
    ],
    codes=(0, 1, 2, 4),
    profile=True,
)
def record(
    session: Session,
    source: Annotated[str, typer.Argument(help="The source, with or without its schema.")],
    begin: Annotated[
        str | None, typer.Option("--from", help="First time (UTC), or how long ago: '10 minutes'. Default: the oldest.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="Time before which it ends, likewise. Default: the end of the topic now.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most so many messages, the oldest.")] = LIMIT,
    mask: Annotated[
        list[str] | None, typer.Option("--mask", help="A column whose values are made unrecognisable; may be repeated.")
    ] = None,
    salt: Annotated[
        str | None,
        typer.Option(
            help="Gives the same mask to the same value in every recording with this salt.", envvar="PENSTOCK_SALT"
        ),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="The fixture. Default: tests/streams/fixtures/<source>.jsonl.gz.", show_default=False
        ),
    ] = None,
) -> int:
    """Record messages of a source into a small file: keys, values, headers, times, partitions, offsets and schemas.

    Stream tests read it with `input: {shop.clicks: {fixture: …}}`; `penstock replay --file` writes it into a topic.
    Reading leaves no trace at the broker. What is masked is replaced by a keyed hash: equal values stay equal within
    the file.
    """
    from penstock.cli.manifest import current_manifest
    from penstock.cli.relations import pick, stream_sources
    from penstock.compiler import compile_source
    from penstock.testing.fixtures import write
    from penstock.testing.recording import record as run

    ui = session.ui
    sources = stream_sources(current_manifest(session))
    relation = pick(source, list(sources))
    wanted = compile_source(sources[relation], project_dir=session.project)
    target = file or session.project / "tests" / "streams" / "fixtures" / f"{relation}.jsonl.gz"
    with ui.working(f"recording {relation}"):
        found = run(
            wanted, session.settings(), session.paths, begin=begin, end=end, limit=limit, masked=mask or [], salt=salt
        )
        size = write(found, target)
    shown = target.relative_to(session.project) if target.is_relative_to(session.project) else target
    if ui.is_json:
        ui.data(
            {
                "source": relation, "topic": found.topic, "messages": len(found.records), "bytes": size,
                "schemas": sorted(found.schemas), "masked": list(found.masked), "file": str(shown),
            }
        )  # fmt: skip
        return 0
    ui.say(f"{relation}: {len(found.records):,} messages, {output.size(size)}, in {shown}.")
    if len(found.records) == limit:
        ui.note(f"There may be more: --limit is {limit:,}.")
    return 0

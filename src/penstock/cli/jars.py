"""`penstock jars`: the jars that a compiled job needs."""

from __future__ import annotations

import typer

from penstock.cli.session import Session, command

app = typer.Typer()


@command(
    app,
    "jars",
    examples=["penstock jars", 'spark-submit --jars "$(penstock jars)" target/penstock/shop.clicks_clean/job.py'],
    codes=(0, 3),
    project=False,
)
def jars(session: Session) -> None:
    """Print the paths of the engine's jars, separated by commas, as spark-submit takes them.

    Jars that are missing in the cache are fetched first; their checksums are verified.
    """
    from penstock.jars import fetch
    from penstock.jars.progress import shown

    ui = session.ui
    if ui.quiet:
        found = fetch("engine")
    else:
        with shown("jars for the engine", ui.err) as progress:
            found = fetch("engine", progress)
    names = [str(path) for path in found]
    if ui.is_json:
        ui.data({"jars": names})
    else:
        ui.say(",".join(names))

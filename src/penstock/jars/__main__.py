"""`python -m penstock.jars` fetches every group; `python -m penstock.jars lock` computes the lock file anew."""

from __future__ import annotations

import sys

from rich.console import Console

from penstock.errors import ExitCode, PenstockError
from penstock.jars.fetch import fetch
from penstock.jars.java import java
from penstock.jars.lock import GROUPS, load_lock, lock_path, render_lock
from penstock.jars.progress import shown
from penstock.jars.relock import relock


def main(arguments: list[str]) -> int:
    """The exit code; errors are one line, never a stack trace."""
    out = Console(stderr=True, soft_wrap=True, highlight=False)
    try:
        if arguments == ["lock"]:
            lock = relock(load_lock())
            lock_path().write_text(render_lock(lock), encoding="utf-8")
            out.print(f"{len(lock.jars)} jars locked")
            return ExitCode.OK
        if arguments:
            out.print("usage: python -m penstock.jars [lock]", markup=False)
            return ExitCode.BAD_INPUT
        java()
        for group in GROUPS:
            with shown(f"jars for the {group}", out) as progress:
                fetch(group, progress)
    except PenstockError as error:
        out.print(str(error), markup=False)
        return error.kind.exit_code
    return ExitCode.OK


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

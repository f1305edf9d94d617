"""Files of a checkpoint: whole, or not there at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(file: Path, text: str) -> None:
    """Write a file so that a crash leaves the one of before, or this one."""
    draft = file.with_name(f".{file.name}.penstock.tmp")
    with draft.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)

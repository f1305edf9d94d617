"""The macros of the adapter. `macros` is the folder of that name at the top of the repository."""

from pathlib import Path

PACKAGE_PATH = str(Path(__file__).parent)

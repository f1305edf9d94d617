"""Spark SQL text: literals and calls, broken into lines that a person can read."""

from __future__ import annotations

import re
from collections.abc import Sequence

WIDTH = 80
_SIGNS = {"\\": "\\\\", "'": "\\'", "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


def text(value: str) -> str:
    """A string literal."""
    return "'" + "".join(_SIGNS.get(sign, sign) for sign in value) + "'"


def texts(parts: Sequence[str]) -> str:
    """A string literal of all parts: on one line if it fits, else a part a line, which Spark puts together."""
    whole = text("".join(parts))
    return whole if len(whole) <= WIDTH or len(parts) == 1 else "\n".join(text(part) for part in parts)


def call(function: str, arguments: Sequence[str]) -> str:
    """`function(arguments)`: on one line if it fits, else an argument a line."""
    line = f"{function}({', '.join(arguments)})"
    if "\n" not in line and len(line) <= WIDTH:
        return line
    return f"{function}(\n{indented(listed(arguments))}\n)"


def listed(parts: Sequence[str], between: str = ",") -> str:
    """The parts, one a line; `between` ends a line, or begins it when it is a word."""
    return f"\n{between} ".join(parts) if between.isalpha() else f"{between}\n".join(parts)


def indented(lines: str, by: int = 4) -> str:
    return "\n".join(f"{' ' * by}{line}" if line else line for line in lines.split("\n"))


def plain_name(relation: str) -> str:
    """shop.clicks -> shop__clicks: a name in SQL and in Python."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", relation.replace(".", "__")).lower()
    return f"_{plain}" if plain[0].isdigit() else plain

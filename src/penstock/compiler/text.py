"""Python source text: literals and calls, formatted as ruff formats them."""

from __future__ import annotations

WIDTH = 120


def literal(value: str | None) -> str:
    """A Python literal on one line, in the quotes that ruff would choose."""
    if value is None:
        return "None"
    body = "".join(_escaped(sign) for sign in value)
    if '"' in value and "'" not in value:
        return f"'{body}'"
    return '"' + body.replace('"', '\\"') + '"'


def block(text: str) -> str:
    """A text of several lines as a triple-quoted literal that evaluates to `text` between two line ends.

    The first line end is counted by whoever maps Spark's line numbers back. What cannot stand between triple quotes
    as it is (backslashes, three quotes, control signs) is escaped.
    """
    body = "".join(sign if sign == "\n" else _escaped(sign) for sign in text).replace('"""', '\\"\\"\\"')
    body = "\n".join(_escape_trailing(line) for line in body.split("\n"))
    return f'"""\n{body}\n"""'


def call(head: str, arguments: list[str], *, indent: int, exploded: bool = False) -> list[str]:
    """The lines of `head(arguments)`: on one line if it fits, else one argument a line. An argument may have lines."""
    pad = " " * indent
    exploded = exploded or any("\n" in argument for argument in arguments)
    one_line = f"{pad}{head}({', '.join(arguments)})"
    if not exploded and len(one_line) <= WIDTH:
        return [one_line]
    inner = f"{pad}    {', '.join(arguments)}"
    if not exploded and len(inner) <= WIDTH:
        return [f"{pad}{head}(", inner, f"{pad})"]
    lines = [f"{pad}    {line}" for argument in arguments for line in f"{argument},".split("\n")]
    return [f"{pad}{head}(", *lines, f"{pad})"]


def joined(parts: list[str], *, indent: int) -> str:
    """A literal of all parts: on one line if it fits at that indent with a comma, else a part a line."""
    whole = literal("".join(parts))
    if indent + len(whole) < WIDTH or len(parts) == 1:
        return whole
    return "\n".join(literal(part) for part in parts)


def sentence(text: str) -> str:
    """A text as part of a docstring: one line, no quotes that could end it, no escapes."""
    return "".join(sign if sign.isprintable() else " " for sign in text).replace("\\", "/").replace('"', "'")


def _escaped(sign: str) -> str:
    if sign == "\\":
        return "\\\\"
    if sign.isprintable():
        return sign
    code = ord(sign)
    named = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(sign)
    if named:
        return named
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_trailing(line: str) -> str:
    """White space at a line's end is part of the text but invisible, and editors take it away: escape it."""
    stripped = line.rstrip(" ")
    return stripped + "\\x20" * (len(line) - len(stripped))

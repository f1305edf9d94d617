"""From a line of the compiled SQL to the line of the model file.

Rules
- A Jinja tag of several lines (a config block, a macro call) is one logical line with the number of its first line;
  text after the tag keeps the number of its own line.
- Logical lines and compiled lines are compared as texts. Equal ones belong together; so do blocks of equal length.
- In other blocks the most similar lines are paired in order; a line without a partner takes its neighbour's number.
"""

from __future__ import annotations

import difflib
import re

_TAG = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}", re.DOTALL)
_PLACE = "\x00"
_MOST_PAIRS = 10_000  # beyond it a block is mapped by proportion: comparing would take seconds


def line_map(raw: str, compiled: str) -> tuple[int, ...]:
    """The model file's line (from 1) of each line of the compiled SQL."""
    left = _logical_lines(raw)
    right = [line.strip() for line in compiled.splitlines()]
    if not left:
        return tuple(1 for _ in right)
    texts = [text for _, text in left]
    found: list[int] = []
    matcher = difflib.SequenceMatcher(a=texts, b=right, autojunk=False)
    for kind, a1, a2, b1, b2 in matcher.get_opcodes():
        if kind == "equal" or (kind == "replace" and a2 - a1 == b2 - b1):
            found.extend(left[a1 + step][0] for step in range(b2 - b1))
        elif kind == "replace":
            found.extend(left[a1 + index][0] for index in _paired(texts[a1:a2], right[b1:b2]))
        elif kind == "insert":
            found.extend(left[min(max(a1 - 1, 0), len(left) - 1)][0] for _ in range(b2 - b1))
    return tuple(found)


def _logical_lines(raw: str) -> list[tuple[int, str]]:
    lines: list[tuple[int, str]] = []
    number, start, text, at = 1, 1, "", 0
    for tag in [*_TAG.finditer(raw), None]:
        for position, part in enumerate(raw[at : tag.start() if tag else len(raw)].split("\n")):
            if position:
                lines.append((start, text.strip()))
                number += 1
                start, text = number, ""
            text += part
        if tag is None:
            break
        text += _PLACE if tag.group().startswith("{{") else ""
        inside = tag.group().count("\n")
        if inside and not text.replace(_PLACE, "").strip():
            rest = raw[tag.end() :].split("\n", 1)[0]
            start = number if not rest.strip() else number + inside
        number += inside
        at = tag.end()
    lines.append((start, text.strip()))
    return lines


def _paired(left: list[str], right: list[str]) -> list[int]:
    """For each of `right` an index of `left`, rising, so that similar lines meet."""
    rows, columns = len(left), len(right)
    if rows * columns > _MOST_PAIRS:
        return [index * rows // columns for index in range(columns)]
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    alike = [[_similarity(a, b) for b in right] for a in left]
    for i in range(rows - 1, -1, -1):
        for j in range(columns - 1, -1, -1):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], best[i + 1][j + 1] + alike[i][j])
    pairs: dict[int, int] = {}
    i = j = 0
    while i < rows and j < columns:
        if alike[i][j] > 0 and best[i][j] == best[i + 1][j + 1] + alike[i][j]:
            pairs[j] = i
            i, j = i + 1, j + 1
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    found: list[int] = []
    for j in range(columns):
        found.append(pairs.get(j, found[-1] if found else min(pairs.values(), default=0)))
    return found


def _similarity(a: str, b: str) -> float:
    if a == b:
        return 1.0
    if a == _PLACE:
        return 0.1  # a lone tag may become anything
    ratio = difflib.SequenceMatcher(a=a, b=b, autojunk=False).ratio()
    return ratio if ratio > 0.4 else 0.0

"""The nearest right word for a wrong one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`Did you mean 'json'?`, or the list of what is known when nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(word.lower(), [n.lower() for n in names], n=1, cutoff=0.6)
    if near:
        right = next(n for n in names if n.lower() == near[0])
        return f"Did you mean '{right}'?"
    return f"Known: {', '.join(names)}."

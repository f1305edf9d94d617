"""The tables of settings in docs/models.md, written from the list that models are read by. The rest is prose.

A table stands between `<!-- name -->` and `<!-- /name -->`.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.compiler.spec import StreamSpec, Trigger
from penstock.control.health import DEFAULT_LIMITS
from penstock.project.model_settings import OF_DBT, OWN, PUBLISH, Setting


def models_page(page: str) -> str:
    """The page with its tables as they are now."""
    page = _filled(page, "settings", "key", (*OWN, *OF_DBT))
    return _filled(page, "publish", "below `publish`", PUBLISH)


def _filled(page: str, name: str, first: str, settings: Sequence[Setting]) -> str:
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- /{name} -->\n")
    assert end, f"docs/models.md has no place for the table '{name}'"
    lines = [f"| `{s.key}` | {s.takes} | {s.default or _number(s.key)} | {s.about} |" for s in settings]
    table = "\n".join([f"| {first} | takes | default | meaning |", "|---|---|---|---|", *lines])
    return f"{before}{begin}\n{table}\n\n{end}{after}"


def _number(key: str) -> str:
    """The default that a stream gets from the compiler, or a check from Dagster's limits."""
    if key == "max_lag":
        return f"{DEFAULT_LIMITS.max_lag_seconds / 60:g} minutes"
    fields = {**StreamSpec.model_fields, **Trigger.model_fields}
    return str((fields.get(key) or fields[f"{key}_ms"]).default)

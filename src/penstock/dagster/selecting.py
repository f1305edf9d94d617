"""Which models, source tables and streams a selection means: names, or dbt's own selection language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dagster_dbt.utils import select_unique_ids

from penstock.compiler import source_tables
from penstock.dagster.project import Project
from penstock.errors import did_you_mean
from penstock.errors.catalogue import STREAM_UNKNOWN, USAGE
from penstock.project.source import is_source_table

ALL = "*"


@dataclass(frozen=True)
class Deployable:
    """What a selection means that can be deployed."""

    models: tuple[str, ...]  # unique ids of what dbt builds
    source_tables: tuple[str, ...]  # and of what it does not
    words: tuple[str, ...]  # the selection as dbt understands it


def selected(project: Project, select: str) -> Deployable:
    """The models and source tables that a selection means; PEN-5006 when there are none."""
    if not select.strip():
        raise USAGE.error("The selection is empty.", hint="Use dbt's selection, such as 'clicks_clean+', or '*'.")
    found = _matching(project, select, ("model", "seed", "snapshot", "source"))
    models = tuple(each for each in found if not each.startswith("source."))
    sources = project.manifest["sources"]
    named = sorted(sources) if select.strip() == ALL else [each for each in found if each in sources]
    tables = tuple(each for each in named if is_source_table(sources[each]))
    if not models and not tables:
        raise _nothing(project, select)
    return Deployable(models, tables, tuple(_words(project, select)))


def selected_streams(project: Project, select: str, deployed: Sequence[str]) -> list[str]:
    """The deployed streams that a selection means: by name, or by dbt's selection."""
    words = select.split()
    if not words:
        raise USAGE.error("The selection is empty.", hint="Name streams, use dbt's selection, or '*' for all.")
    if words == [ALL]:
        return list(deployed)
    if all(word in deployed for word in words):  # also a stream whose model is gone from the project
        return words
    matching = set(_matching(project, select, ("model", "source")))
    models = [name for name, node in project.streams.items() if node["unique_id"] in matching]
    if not models:
        raise _nothing(project, select)
    found = [name for name in models if name in deployed]
    if not found:
        raise STREAM_UNKNOWN.error(f"'{select}' is not deployed.", hint="Materialise it first, or 'dbt run'.")
    return found


def _matching(project: Project, select: str, kinds: tuple[str, ...]) -> list[str]:
    words = " ".join(_words(project, select))
    ids = select_unique_ids(select=words, exclude="", selector="", project=project.dbt, manifest_json=project.manifest)
    return sorted(each for each in ids if each.split(".")[0] in kinds)


def _words(project: Project, select: str) -> list[str]:
    """Streams are known by schema.name, too, which dbt's language does not know."""
    by_name: Mapping[str, Mapping[str, Any]] = {name.lower(): node for name, node in project.streams.items()}
    return [_in_dbts_words(by_name[word.lower()]) if word.lower() in by_name else word for word in select.split()]


def _in_dbts_words(entry: Mapping[str, Any]) -> str:
    name = str(entry["name"])
    return f"source:{entry['source_name']}.{name}" if entry["resource_type"] == "source" else name


def _nothing(project: Project, select: str) -> Exception:
    names = [str(node["name"]) for node in project.manifest["nodes"].values() if node["resource_type"] == "model"]
    names += [_in_dbts_words(project.manifest["sources"][each]) for each in source_tables(project.manifest).values()]
    return USAGE.error(f"'{select}' selects no model of this project.", hint=did_you_mean(select, names))

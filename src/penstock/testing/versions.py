"""The SQL of a new version of a model, rendered without dbt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from penstock.errors import Location
from penstock.errors.catalogue import STREAM_TEST_SQL
from penstock.project.source import relation_of
from penstock.testing.chain import Project


def render(sql: str, project: Project, at: Location) -> tuple[str, dict[str, Any]]:
    """The SQL that Spark gets, and what it sets with config()."""
    config: dict[str, Any] = {}

    def ref(*names: str, **_: Any) -> str:
        return _relation(f"ref('{names[-1]}')")

    def source(name: str, table: str) -> str:
        return _relation(f"source('{name}', '{table}')")

    def _relation(name: str) -> str:
        return relation_of(project.entry(project.find(name, at)))

    def configure(settings: Mapping[str, Any] | None = None, **more: Any) -> str:
        config.update({**(settings or {}), **more})
        return ""

    def var(name: str, default: Any = None) -> Any:
        if default is None:
            raise TemplateError(f"variable {name} has no default")
        return default

    environment = SandboxedEnvironment(undefined=StrictUndefined)
    environment.globals.update(ref=ref, source=source, config=configure, var=var)
    try:
        return environment.from_string(sql).render(), config
    except TemplateError as problem:
        raise STREAM_TEST_SQL.error(f"the SQL cannot be rendered: {problem}.", at=at) from None

"""Jinja in profiles.yml, as dbt reads it there, without dbt.

Rules
- Only text is rendered, in a sandbox; the result is text unless one of dbt's filters asks for another type.
- `env_var(name[, default])` and `var(name, default)` are known. A variable that is not set and has no default is an
  error that names it.
"""

from __future__ import annotations

import ast
import os
import re
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

_TYPED = re.compile(r"\|\s*as_(number|bool|native)\s*(?:\}\}|-\}\})")


class RenderError(Exception):
    """A text that cannot be rendered; the message says why."""


def _env_var(name: str, default: str | None = None) -> str:
    value = os.environ.get(name, default)
    if value is None:
        raise RenderError(f"environment variable {name} is not set and has no default")
    return str(value)


def _var(name: str, default: Any = None) -> Any:
    if default is None:
        raise RenderError(f"variable {name} has no default")
    return default


def _same(value: Any) -> Any:
    return value


_ENVIRONMENT = SandboxedEnvironment(undefined=StrictUndefined)
_ENVIRONMENT.globals.update(env_var=_env_var, var=_var)
_ENVIRONMENT.filters.update(as_number=_same, as_bool=_same, as_native=_same, as_text=_same)


def render(value: Any) -> Any:
    """The value with its Jinja rendered; anything but text is returned as it is."""
    if not isinstance(value, str) or "{" not in value:
        return value
    try:
        text = _ENVIRONMENT.from_string(value).render()
    except TemplateError as problem:
        raise RenderError(f"the Jinja of '{value}' cannot be rendered: {problem}") from None
    wanted = _TYPED.search(value)
    return text if wanted is None else _typed(text, wanted.group(1))


def _typed(text: str, kind: str) -> Any:
    if kind == "bool":
        if text.strip().lower() in {"true", "false"}:
            return text.strip().lower() == "true"
        raise RenderError(f"'{text}' is neither true nor false")
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError):
        if kind == "native":
            return text
        raise RenderError(f"'{text}' is not a number") from None
    if kind == "number" and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise RenderError(f"'{text}' is not a number")
    return value

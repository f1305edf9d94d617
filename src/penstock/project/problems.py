"""What a settings model rejects, as an error of the catalogue in the user's words.

Rules
- An unknown key comes before a wrong value: it is often the cause of the other.
- The value is shown, unless the setting is a secret.
"""

from __future__ import annotations

from typing import NamedTuple

from pydantic import BaseModel, ValidationError

from penstock.errors import Kind, did_you_mean
from penstock.errors.catalogue import ALL, SOURCE_KEY_UNKNOWN, SOURCE_TYPE_UNKNOWN, SOURCE_VALUE_INVALID
from penstock.kafka.security import Reference, is_secret
from penstock.project.formats import FORMATS
from penstock.project.settings import names_of
from penstock.project.start import StartAt
from penstock.project.watermark import said

_WANTED = {
    "string_type": "a text", "string_too_short": "a text", "string_pattern_mismatch": "written otherwise",
    "int_type": "a whole number", "int_parsing": "a whole number", "int_from_float": "a whole number",
    "list_type": "a list", "dict_type": "a mapping", "model_type": "a mapping", "model_attributes_type": "a mapping",
    "too_short": "given, and not be empty", "missing": "given",
}  # fmt: skip
_TAGGED: dict[str, type[BaseModel]] = {"#at": StartAt, **{f"#{name}": settings for name, settings in FORMATS.items()}}


class Problem(NamedTuple):
    """The first thing that is wrong: its kind, a sentence, the keys that lead to it, and what to do."""

    kind: Kind
    message: str
    steps: tuple[str, ...]
    hint: str | None = None


def first_problem(problem: ValidationError, model: type[BaseModel]) -> Problem:
    """The first thing that `model` rejects."""
    errors = problem.errors(include_url=False)
    error = next((each for each in errors if each["type"] == "extra_forbidden"), errors[0])
    found, context = str(error["type"]), error.get("ctx") or {}
    loc = [str(step) for step in error["loc"]]
    steps = tuple(step for step in loc if not step.startswith(("#", "[")))
    name = ".".join(steps)
    if found == "extra_forbidden":
        known = _known(loc, model)
        return Problem(SOURCE_KEY_UNKNOWN, f"setting '{name}' is unknown.", steps, did_you_mean(steps[-1], known))
    if found in ALL:
        below = (str(context["at"]),) if "at" in context else ()
        return Problem(ALL[found], f"'{name}': {error['msg']}", (*steps, *below), context.get("hint"))
    if steps == ("type",):
        hint = did_you_mean(str(error["input"]), ["kafka"])
        return Problem(SOURCE_TYPE_UNKNOWN, f"source type {said(error['input'])} is unknown.", steps, hint)
    expected = f"Use {context['expected']}." if "expected" in context else None
    wanted = _WANTED.get(found, _sentence(str(error["msg"])))
    shown = "" if is_secret(name) or found in {"missing", "too_short"} else f", not {said(error['input'])}"
    return Problem(SOURCE_VALUE_INVALID, f"'{name}' must be {wanted}{shown}.", steps, expected)


def _known(loc: list[str], model: type[BaseModel]) -> list[str]:
    """The keys that could stand where the unknown one does."""
    tags = [step for step in loc if step in _TAGGED]
    if tags:
        return names_of(_TAGGED[tags[-1]])
    return names_of(model) if len(loc) == 1 else names_of(Reference)


def _sentence(message: str) -> str:
    return message.removeprefix("Input should be ").removeprefix("Value should be ").lower()

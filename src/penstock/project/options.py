"""Options of Kafka clients, of a source or of the profile: `kafka.*`, and credentials by their plain names.

Rules
- Every option is kept with the prefix `kafka.`; credentials may be written with or without it, but not both.
- An empty text is as good as nothing, so that a template can leave credentials open.
- A secret is a reference; any other option may be one. What is written out is text.
- Credentials must fit together: half of them would fail later, with a message of the broker's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from penstock.errors import Kind
from penstock.errors.catalogue import AUTH_INCOMPLETE, OPTION_RESERVED, SECRET_LITERAL, SOURCE_VALUE_INVALID
from penstock.kafka.security import MECHANISMS, NAMES, PREFIX, Reference, Value, is_secret
from penstock.project.problems import Problem, first_problem
from penstock.project.settings import RegistrySettings, SecuritySettings
from penstock.registry.address import NAMES as REGISTRY_NAMES
from penstock.registry.address import PREFIX as REGISTRY_PREFIX
from penstock.registry.address import URL

# What Penstock sets itself, or what would break exactly-once.
_RESERVED = frozenset({
    "bootstrap.servers", "group.id", "auto.offset.reset", "enable.auto.commit", "key.deserializer",
    "value.deserializer", "interceptor.classes",
})  # fmt: skip


class OptionError(Exception):
    """What is wrong with an option; `problem.steps` is the key as the user wrote it."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def is_option(key: str) -> bool:
    """Whether a setting is an option of the client."""
    return key.startswith(PREFIX) or key in NAMES


def read_options(settings: Mapping[str, Any]) -> dict[str, Value]:
    """The options among the settings, sorted, each with the prefix."""
    written: dict[str, str] = {}
    for key in settings:
        if not is_option(key):
            continue
        name = key.removeprefix(PREFIX)
        if name in _RESERVED:
            raise _problem(OPTION_RESERVED, f"setting '{key}' is not for you to set.", key,
                           "Use 'bootstrap.servers' and 'start'.")  # fmt: skip
        if name in written:
            raise _problem(SOURCE_VALUE_INVALID, f"'{name}' is set twice, with and without '{PREFIX}'.", key)
        if not (name in NAMES and settings[key] == ""):
            written[name] = key
    known = {name: settings[key] for name, key in written.items() if name in NAMES}
    try:
        checked = SecuritySettings.model_validate(known)
    except ValidationError as problem:
        first = first_problem(problem, SecuritySettings)
        raise OptionError(first._replace(steps=(written[first.steps[0]], *first.steps[1:]))) from None
    options: dict[str, Value] = {
        str(field.alias): value
        for name, field in SecuritySettings.model_fields.items()
        if (value := getattr(checked, name)) is not None
    }
    options |= {name: _passed(key, settings[key]) for name, key in written.items() if name not in NAMES}
    _fit_together(options, written)
    return {f"{PREFIX}{name}": options[name] for name in sorted(options)}


def read_registry(settings: Mapping[str, Any]) -> dict[str, Value]:
    """Address and options of the profile's schema registry, by the names without the prefix of a source."""
    written = {f"{REGISTRY_PREFIX}{name}": settings.get(name) for name in (URL, *REGISTRY_NAMES)}
    given = {name: value for name, value in written.items() if value not in (None, "")}
    try:
        return RegistrySettings.model_validate(given).registry()
    except ValidationError as problem:
        first = first_problem(problem, RegistrySettings)
        name, *below = first.steps
        short = name.removeprefix(REGISTRY_PREFIX)
        message = first.message.replace(name, short)
        raise OptionError(first._replace(steps=(short, *below), message=message)) from None


def _passed(key: str, value: Any) -> Value:
    """An option that is only passed through."""
    if isinstance(value, Mapping):
        try:
            return Reference.model_validate(dict(value))
        except ValidationError as problem:
            first = first_problem(problem, Reference)
            raise OptionError(first._replace(steps=(key, *first.steps))) from None
    if is_secret(key):
        raise _problem(SECRET_LITERAL, f"'{key}' is a secret and is written out.", key)
    if isinstance(value, list) or value is None:
        raise _problem(SOURCE_VALUE_INVALID, f"'{key}' must be a text or a number.", key)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _fit_together(options: Mapping[str, Value], written: Mapping[str, str]) -> None:
    def wrong(message: str, name: str, hint: str | None = None) -> OptionError:
        return _problem(AUTH_INCOMPLETE, message, written[name], hint)

    protocol = str(options.get("security.protocol", "PLAINTEXT"))
    mechanisms = [name for name in ("sasl.mechanisms", "sasl.mechanism") if name in options]
    if len(mechanisms) == 2 and options[mechanisms[0]] != options[mechanisms[1]]:
        raise wrong("'sasl.mechanisms' and 'sasl.mechanism' differ.", mechanisms[1], "Keep one of them.")
    for name in options:
        if name.startswith("sasl.") and not protocol.startswith("SASL_"):
            hint = "Set 'security.protocol' to SASL_SSL (or SASL_PLAINTEXT), or remove it."
            raise wrong(f"'{name}' is set, but 'security.protocol' is {protocol}.", name, hint)
        if name.startswith("ssl.") and not protocol.endswith("SSL"):
            hint = "Set 'security.protocol' to SSL or SASL_SSL, or remove it."
            raise wrong(f"'{name}' is set, but 'security.protocol' is {protocol}.", name, hint)
    if protocol.startswith("SASL_"):
        if not mechanisms:
            raise wrong(f"{protocol} needs 'sasl.mechanisms'.", "security.protocol", f"Use {', '.join(MECHANISMS)}.")
        if options[mechanisms[0]] in MECHANISMS and "sasl.jaas.config" not in options:
            for name in ("sasl.username", "sasl.password"):
                if name not in options:
                    raise wrong(f"{options[mechanisms[0]]} needs '{name}'.", mechanisms[0], f"Add '{name}'.")
    pair = ("ssl.certificate.location", "ssl.key.location")
    for one, other in (pair, pair[::-1]):
        if one in options and other not in options:
            raise wrong(f"'{one}' needs '{other}'.", one, f"Add '{other}'.")
    if "ssl.key.password" in options and not {"ssl.key.location", "ssl.keystore.key"} & set(options):
        raise wrong("'ssl.key.password' is set without a key.", "ssl.key.password", "Add 'ssl.key.location'.")


def _problem(kind: Kind, message: str, key: str, hint: str | None = None) -> OptionError:
    return OptionError(Problem(kind, message, (key,), hint))

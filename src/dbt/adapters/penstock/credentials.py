"""The target of profiles.yml as dbt hands it to the adapter.

Rules
- A target takes the keys of `RuntimeSettings`; anything else is an error with the nearest right name.
- There is no address and no token in a profile: the engine publishes both when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dbt.adapters.contracts.connection import Credentials
from dbt_common.exceptions import DbtConfigError

from penstock.errors import PenstockError, did_you_mean
from penstock.errors.catalogue import PROFILE_INVALID

if TYPE_CHECKING:
    from penstock.project.profile import RuntimeSettings

_KEYS = frozenset(
    {"type", "schema", "database", "threads", "kafka", "schema_registry", "store", "engine", "maintenance"}
)


@dataclass
class PenstockCredentials(Credentials):  # type: ignore[misc]
    """A target of type penstock."""

    schema: str | None = None
    database: str | None = None
    kafka: dict[str, Any] = field(default_factory=dict)
    schema_registry: dict[str, Any] = field(default_factory=dict)
    store: str | None = None
    engine: dict[str, Any] = field(default_factory=dict)
    maintenance: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def __pre_deserialize__(cls, data: Any) -> Any:
        data = super().__pre_deserialize__(data)
        for key in data:
            if key not in _KEYS:
                raise _invalid(f"Setting '{key}' of the target is unknown.", did_you_mean(key, _KEYS))
        return {"database": None, **{key: value for key, value in data.items() if value is not None}}

    def __post_init__(self) -> None:
        if not self.schema:
            raise _invalid("The target has no schema.", "Add 'schema:' with the name of a database.")
        if self.database is not None and self.database != self.schema:
            raise _invalid("The target has a database.", "Leave it out: a schema is a database in Spark.")
        self.database = None

    @property
    def type(self) -> str:
        return "penstock"

    @property
    def unique_field(self) -> str:
        return str(self.schema)

    def _connection_keys(self) -> tuple[str, ...]:
        return ("schema",)  # a store's address may carry a password

    def settings(self, target: str) -> RuntimeSettings:
        """What supervisor and engine are started with; the same as `penstock up` reads from the file."""
        from pydantic import ValidationError

        from penstock.project.options import is_option
        from penstock.project.profile import RuntimeSettings

        kafka = dict(self.kafka)
        own = {key: kafka.pop(key) for key in ("embedded", "port", "topics") if key in kafka}
        bootstrap = kafka.pop("bootstrap.servers", None)
        options = {key: kafka.pop(key) for key in list(kafka) if is_option(key)}
        values = {
            "target": target,
            "schema": self.schema,
            "kafka": {**own, **kafka, "bootstrap": bootstrap, "options": _options(options)},
            "schema_registry": _registry(self.schema_registry),
            "store": self.store,
            "maintenance": self.maintenance,
            "engine": {**self.engine, "spark_conf": _texts(self.engine.get("spark_conf") or {})},
        }
        try:
            return RuntimeSettings.model_validate(values)
        except ValidationError as problem:
            first = problem.errors()[0]
            where = ".".join(str(step) for step in first["loc"])
            raise PROFILE_INVALID.error(f"Setting '{where}' of target '{target}': {first['msg'].lower()}.") from None


def _registry(values: Mapping[str, Any]) -> dict[str, Any]:
    from penstock.project.options import OptionError, read_registry
    from penstock.registry.address import NAMES, URL

    try:
        options = dict(read_registry(values))
    except OptionError as found:
        raise found.problem.kind.error(found.problem.message, hint=found.problem.hint) from None
    own = {key: value for key, value in values.items() if key not in (URL, *NAMES) and value is not None}
    return {**own, "options": options}


def _options(values: Mapping[str, Any]) -> dict[str, Any]:
    from penstock.project.options import OptionError, read_options

    try:
        return dict(read_options(values))
    except OptionError as found:
        raise found.problem.kind.error(found.problem.message, hint=found.problem.hint) from None


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}


def _invalid(message: str, hint: str) -> DbtConfigError:
    problem: PenstockError = PROFILE_INVALID.error(message, hint=hint)
    return DbtConfigError(str(problem))

"""The target of profiles.yml that a project runs with, as typed settings.

Rules
- The file is searched for in the order of dbt: the argument, DBT_PROFILES_DIR, the project, its profiles/, ~/.dbt.
- Text values are Jinja with `env_var`, `var` and dbt's `as_*` filters; only the chosen target is rendered.
- Keys of a penstock target are checked strictly, with the nearest right name and the line.
- dbt is not imported: reading a profile takes milliseconds.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from penstock.errors import PenstockError, did_you_mean
from penstock.errors.catalogue import NOT_A_PROJECT, PROFILE_INVALID
from penstock.kafka.security import NAMES, Value
from penstock.paths import ProjectPaths
from penstock.project.maintenance import MaintenanceSettings
from penstock.project.options import OptionError, is_option, read_options, read_registry
from penstock.project.positions import Positions
from penstock.project.rendering import RenderError, render
from penstock.registry.address import NAMES as REGISTRY_NAMES
from penstock.registry.address import URL

SETTINGS_FILE = "settings.json"

_DBT_KEYS = frozenset({"type", "schema", "database", "threads"})
_OWN_KEYS = frozenset({"kafka", "schema_registry", "store", "engine", "maintenance"})
_KAFKA_KEYS = frozenset({"embedded", "port", "topics", "bootstrap.servers", *NAMES})
_REGISTRY_KEYS = frozenset({"embedded", "port", URL, *REGISTRY_NAMES})


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TopicSettings(_Settings):
    """A topic that the embedded broker is given when it starts."""

    partitions: int = Field(default=1, ge=1)


class KafkaSettings(_Settings):
    """The broker of the profile: an embedded one, or an address."""

    embedded: bool = False
    port: int = Field(default=0, ge=0, le=65535)
    topics: dict[str, TopicSettings] = {}
    bootstrap: str | None = None
    options: dict[str, Value] = {}  # kafka.*; secrets are references


class SchemaRegistrySettings(_Settings):
    """The schema registry of the profile: an embedded one, or an address."""

    embedded: bool = False
    port: int = Field(default=0, ge=0, le=65535)
    options: dict[str, Value] = {}  # `url` and the options of Confluent's client; secrets are references


class EngineSettings(_Settings):
    """The Spark application that runs the streams."""

    memory: str = Field(default="1g", pattern=r"^[1-9][0-9]*[kmgKMG]$")
    cores: int = Field(default=2, ge=1)
    port: int = Field(default=0, ge=0, le=65535)
    spark_conf: dict[str, str] = {}
    shuffle_partitions: int = Field(default=2, ge=1)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # `schema` is dbt's word; pydantic's old method of that name is unused

    class RuntimeSettings(_Settings):
        """What the supervisor and the engine need to know of the profile."""

        target: str
        schema: str  # type: ignore[assignment]
        kafka: KafkaSettings = KafkaSettings()
        schema_registry: SchemaRegistrySettings = SchemaRegistrySettings()
        store: str | None = None
        engine: EngineSettings = EngineSettings()
        maintenance: MaintenanceSettings = MaintenanceSettings()


def load_profile(
    project_dir: Path | str, *, profiles_dir: Path | str | None = None, target: str | None = None
) -> RuntimeSettings:
    """The settings of the project's target; PROFILE_INVALID with file and line if they cannot be used."""
    project = Path(project_dir)
    name = _profile_name(project)
    file = _profiles_file(project, profiles_dir)
    shown = _shown(file, project)
    where = Positions.read(file, shown)
    profiles = _read_yaml(file, shown)
    profile = profiles.get(name)
    if not isinstance(profile, Mapping):
        names = [key for key in profiles if key != "config"]
        raise PROFILE_INVALID.error(f"there is no profile '{name}'.", at=where.at(), hint=did_you_mean(name, names))
    outputs = profile.get("outputs")
    if not isinstance(outputs, Mapping) or not outputs:
        raise PROFILE_INVALID.error(f"profile '{name}' has no outputs.", at=where.at(name))
    try:
        chosen = target or os.environ.get("DBT_TARGET") or str(render(profile.get("target", "default")))
    except RenderError as problem:
        raise PROFILE_INVALID.error(f"{problem}.", at=where.at(name, "target")) from None
    output = outputs.get(chosen)
    if not isinstance(output, Mapping):
        raise PROFILE_INVALID.error(
            f"profile '{name}' has no target '{chosen}'.", at=where.at(name, "outputs"),
            hint=did_you_mean(chosen, [str(key) for key in outputs]),
        )  # fmt: skip
    return _Target(where, (name, "outputs", chosen)).settings(chosen, output)


def save_settings(paths: ProjectPaths, settings: RuntimeSettings) -> None:
    """Keep the settings for the background processes; the file is the owner's alone, and never half written."""
    paths.home.mkdir(parents=True, exist_ok=True)
    file = paths.home / SETTINGS_FILE
    draft = file.with_name(f"{SETTINGS_FILE}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(settings.model_dump_json(indent=2) + "\n")
    draft.replace(file)


def read_settings(paths: ProjectPaths) -> RuntimeSettings:
    """The settings that `penstock up` saved."""
    file = paths.home / SETTINGS_FILE
    try:
        return RuntimeSettings.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PROFILE_INVALID.error(
            f"there are no saved settings at .penstock/{SETTINGS_FILE}.", hint="'penstock up' writes them."
        ) from None
    except ValidationError:
        raise PROFILE_INVALID.error(
            f".penstock/{SETTINGS_FILE} is damaged or of another version.", hint="'penstock up' writes it anew."
        ) from None


class _Target:
    """One output of a profile, checked key by key."""

    def __init__(self, where: Positions, path: tuple[str, ...]) -> None:
        self.where = where
        self.path = path

    def settings(self, name: str, raw: Mapping[str, Any]) -> RuntimeSettings:
        output = self._rendered(raw, self.path)
        kind = output.get("type")
        if kind != "penstock":
            raise self._error(
                f"target '{name}' is of type '{kind}', not penstock.", "type", hint="Set 'type: penstock'."
            )
        self._check_keys(output, _DBT_KEYS | _OWN_KEYS)
        if not output.get("schema"):
            raise self._error(f"target '{name}' has no schema.", hint="Add 'schema:' with the name of a database.")
        kafka = self._mapping(output, "kafka")
        engine = self._mapping(output, "engine")
        values = {
            "target": name,
            "schema": output["schema"],
            "kafka": self._kafka(kafka),
            "schema_registry": self._registry(self._mapping(output, "schema_registry")),
            "store": output.get("store"),
            "maintenance": self._mapping(output, "maintenance"),
            "engine": engine | {"spark_conf": self._texts(self._mapping(engine, "spark_conf", "engine"))},
        }
        self._check_keys(engine, set(EngineSettings.model_fields), "engine")
        self._check_keys(values["maintenance"], set(MaintenanceSettings.model_fields), "maintenance")
        try:
            return RuntimeSettings.model_validate(values)
        except ValidationError as problem:
            raise self._from_pydantic(problem) from None

    def _kafka(self, kafka: dict[str, Any]) -> dict[str, Any]:
        self._check_keys({key: None for key in kafka if not is_option(key)}, _KAFKA_KEYS, "kafka")
        topics = self._mapping(kafka, "topics", "kafka")
        for topic in topics:
            settings = self._mapping(topics, topic, "kafka", "topics")
            self._check_keys(settings, set(TopicSettings.model_fields), "kafka", "topics", topic)
            topics[topic] = settings
        bootstrap = kafka.get("bootstrap.servers")
        if bootstrap is not None and kafka.get("embedded"):
            raise self._error(
                "kafka has both 'embedded' and 'bootstrap.servers'.", "kafka", "embedded", hint="Keep one of them."
            )
        return {
            "embedded": kafka.get("embedded", False),
            "port": kafka.get("port", 0),
            "topics": topics,
            "bootstrap": bootstrap,
            "options": self._options(kafka),
        }

    def _registry(self, registry: Mapping[str, Any]) -> dict[str, Any]:
        self._check_keys(registry, _REGISTRY_KEYS, "schema_registry")
        if registry.get("url") is not None and registry.get("embedded"):
            raise self._error("schema_registry has both 'embedded' and 'url'.", "schema_registry", "embedded",
                              hint="Keep one of them.")  # fmt: skip
        try:
            options = read_registry(registry)
        except OptionError as found:
            problem = found.problem
            at = self.where.at(*self.path, "schema_registry", *problem.steps)
            raise problem.kind.error(problem.message, at=at, hint=problem.hint) from None
        return {"embedded": registry.get("embedded", False), "port": registry.get("port", 0), "options": options}

    def _options(self, kafka: Mapping[str, Any]) -> dict[str, Value]:
        try:
            return read_options({key: value for key, value in kafka.items() if value is not None})
        except OptionError as found:
            problem = found.problem
            at = self.where.at(*self.path, "kafka", *problem.steps)
            raise problem.kind.error(problem.message, at=at, hint=problem.hint) from None

    def _mapping(self, within: Mapping[str, Any], key: str, *above: str) -> dict[str, Any]:
        value = within.get(key)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self._error(f"'{key}' must be a mapping.", *above, key)
        return dict(value)

    @staticmethod
    def _texts(values: Mapping[str, Any]) -> dict[str, str]:
        return {key: str(value).lower() if isinstance(value, bool) else str(value) for key, value in values.items()}

    def _check_keys(self, values: Mapping[str, Any], known: frozenset[str] | set[str], *above: str) -> None:
        for key in values:
            if key not in known:
                raise self._error(f"setting '{key}' is unknown.", *above, key, hint=did_you_mean(key, known))

    def _rendered(self, value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Mapping):
            return {str(key): self._rendered(below, (*path, str(key))) for key, below in value.items()}
        if isinstance(value, list):
            return [self._rendered(below, path) for below in value]
        try:
            return render(value)
        except RenderError as problem:
            raise PROFILE_INVALID.error(f"{problem}.", at=self.where.at(*path)) from None

    def _from_pydantic(self, problem: ValidationError) -> PenstockError:
        first = problem.errors()[0]
        steps = ["bootstrap.servers" if step == "bootstrap" else str(step) for step in first["loc"]]
        return self._error(f"setting '{'.'.join(steps)}' has a wrong value: {first['msg'].lower()}.", *steps)

    def _error(self, message: str, *steps: str, hint: str | None = None) -> PenstockError:
        return PROFILE_INVALID.error(message, at=self.where.at(*self.path, *steps), hint=hint)


def _profile_name(project: Path) -> str:
    file = project / "dbt_project.yml"
    if not file.is_file():
        raise NOT_A_PROJECT.error(f"there is no dbt_project.yml in {project}.")
    settings = _read_yaml(file, file.name)
    name = os.environ.get("DBT_PROFILE") or settings.get("profile")
    try:
        rendered = render(name)
    except RenderError as problem:
        raise PROFILE_INVALID.error(f"{problem}.", at=Positions.read(file, file.name).at("profile")) from None
    if not rendered:
        raise PROFILE_INVALID.error("dbt_project.yml names no profile.", hint="Add 'profile:' to dbt_project.yml.")
    return str(rendered)


def _profiles_file(project: Path, profiles_dir: Path | str | None) -> Path:
    candidates = list(_candidates(project, profiles_dir))
    for directory in candidates:
        if (directory / "profiles.yml").is_file():
            return directory / "profiles.yml"
    raise PROFILE_INVALID.error(
        "there is no profiles.yml.", hint=f"Looked in: {', '.join(str(directory) for directory in candidates)}."
    )


def _candidates(project: Path, profiles_dir: Path | str | None) -> Iterator[Path]:
    if profiles_dir is not None:
        yield Path(profiles_dir)
        return
    if named := os.environ.get("DBT_PROFILES_DIR"):
        yield Path(named)
        return
    yield project
    yield project / "profiles"
    yield Path.home() / ".dbt"


def _read_yaml(file: Path, shown: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise PROFILE_INVALID.error(f"{shown} cannot be read: {problem}.") from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f" at line {mark.line + 1}" if mark else ""
        raise PROFILE_INVALID.error(f"{shown} is not YAML{line}.", hint="Correct the file.") from None
    if not isinstance(content, dict):
        raise PROFILE_INVALID.error(f"{shown} is empty or not a mapping.")
    return content


def _shown(file: Path, project: Path) -> str:
    try:
        return str(file.resolve().relative_to(project.resolve()))
    except ValueError:
        return str(file)

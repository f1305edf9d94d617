"""dbt's resources as Dagster assets: dagster-dbt's translator, with what a stream has beside a table.

Rules
- Keys, descriptions, groups, owners, tags and columns are dagster-dbt's. Where it has no group, a source's name or a
  model's folder is one.
- A stream source is an external asset of kind kafka; source tables, exposures and the parts of the platform are
  external too. A source table is a stream like every other, with checks of its own; so is the quarantine of a source.
- Ordinary models follow what is upstream when their `meta.dagster.automation_condition` says so.
- Metadata names topics and formats, never an address with credentials and never an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dagster import AssetKey, AssetSpec, AutomationCondition, MetadataValue
from dagster_dbt import DagsterDbtTranslator, DagsterDbtTranslatorSettings, DbtProject
from dagster_dbt.asset_utils import group_from_dbt_resource_props_fallback_to_directory
from pydantic import ValidationError

from penstock.compiler.spec import StreamSpec
from penstock.dagster.findings import PARTS
from penstock.dagster.project import Project
from penstock.errors.catalogue import USAGE
from penstock.project.model import is_dynamic_table
from penstock.project.source import is_source_table, is_stream, own_settings, relation_of

PLATFORM = "penstock"  # group, and first part of the keys, of what the streams run on
KIND_TAG = "penstock/kind"
_STRAY = "A stream that is deployed without a model of the project."
_EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")
_ABOUT = {
    "supervisor": "Keeps what runs equal to what is deployed: starts, restarts, quarantines.",
    "engine": "The Spark application that runs every stream and answers SQL.",
    "broker": "The Kafka brokers that streams read from.",
    "registry": "The schema registries that messages are decoded with.",
}


class PenstockTranslator(DagsterDbtTranslator):
    """What dagster-dbt makes of a dbt resource, and what a stream adds to it."""

    def __init__(self, settings: DagsterDbtTranslatorSettings | None = None) -> None:
        super().__init__(
            settings or DagsterDbtTranslatorSettings(enable_code_references=True, enable_source_tests_as_checks=True)
        )

    def get_asset_spec(self, manifest: Mapping[str, Any], unique_id: str, project: DbtProject | None) -> AssetSpec:
        """The asset of a dbt resource."""
        known = self.__dict__.setdefault("_penstock_specs", {})
        memo = (id(manifest), unique_id, id(project))
        if memo not in known:
            spec = super().get_asset_spec(manifest, unique_id, project)
            known[memo] = _extended(spec, self.get_resource_props(manifest, unique_id))
        found: AssetSpec = known[memo]
        return found

    def get_group_name(self, dbt_resource_props: Mapping[str, Any]) -> str | None:
        """dbt's group, else the source's name or the model's folder."""
        if dbt_resource_props["resource_type"] == "source":
            found = super().get_group_name(dbt_resource_props) or str(dbt_resource_props["source_name"])
        else:
            found = group_from_dbt_resource_props_fallback_to_directory(dbt_resource_props) or ""
        return re.sub(r"\W", "_", found) or None

    def get_automation_condition(self, dbt_resource_props: Mapping[str, Any]) -> AutomationCondition[Any] | None:
        """`eager`, `on_missing` or `on_cron(…)` below `meta.dagster.automation_condition`; a stream needs none."""
        if is_dynamic_table(dbt_resource_props):
            return None
        meta = (dbt_resource_props.get("config") or {}).get("meta") or dbt_resource_props.get("meta") or {}
        named = (meta.get("dagster") or {}).get("automation_condition")
        if named is None:
            return super().get_automation_condition(dbt_resource_props)
        return condition(str(named), str(dbt_resource_props.get("original_file_path") or ""))


def condition(named: str, where: str) -> AutomationCondition[Any]:
    """An automation condition by its name."""
    if named == "eager":
        return AutomationCondition.eager()
    if named == "on_missing":
        return AutomationCondition.on_missing()
    cron = re.fullmatch(r"on_cron\((.+)\)", named)
    if cron:
        return AutomationCondition.on_cron(cron.group(1).strip("'\" "))
    raise USAGE.error(
        f"{where}: automation_condition '{named}' is unknown.", hint="Use eager, on_missing or on_cron(0 * * * *)."
    )


def source_specs(project: Project, translator: PenstockTranslator) -> list[AssetSpec]:
    """Every source of the project, also those that no model reads."""
    manifest = project.manifest
    specs = [translator.get_asset_spec(manifest, unique_id, project.dbt) for unique_id in sorted(manifest["sources"])]
    return [spec.replace_attributes(skippable=False) for spec in specs]


def exposure_specs(project: Project, translator: PenstockTranslator) -> Iterator[AssetSpec]:
    """Every exposure, below what it uses."""
    manifest = project.manifest
    for unique_id in sorted(manifest.get("exposures") or {}):
        entry = manifest["exposures"][unique_id]
        above = [each for each in entry["depends_on"]["nodes"] if each.startswith(("model.", "source.", "seed."))]
        yield AssetSpec(
            key=AssetKey(["exposures", str(entry["name"])]),
            deps=[translator.get_asset_spec(manifest, each, project.dbt).key for each in above],
            description=entry.get("description") or entry.get("label") or None,
            group_name="exposures",
            owners=_owners(entry.get("owner") or {}),
            tags={KIND_TAG: "exposure"},
            kinds={str(entry.get("type") or "exposure")},
            metadata={"url": MetadataValue.url(entry["url"])} if entry.get("url") else {},
        )


def published_specs(project: Project, translator: PenstockTranslator) -> Iterator[AssetSpec]:
    """Every topic that a dynamic table is published to, below that table."""
    manifest = project.manifest
    above: dict[str, list[Mapping[str, Any]]] = {}
    for unique_id in sorted(manifest["nodes"]):
        node = manifest["nodes"][unique_id]
        topic = published_topic(node)
        if topic is not None:
            above.setdefault(topic, []).append(node)
    for topic, nodes in above.items():
        yield AssetSpec(
            key=AssetKey(["topics", topic]),
            deps=[translator.get_asset_spec(manifest, str(node["unique_id"]), project.dbt).key for node in nodes],
            description=f"The rows of {', '.join(relation_of(node) for node in nodes)}, published to Kafka.",
            group_name="topics",
            tags={KIND_TAG: "topic"},
            kinds={"kafka"},
            metadata={
                "penstock/topic": MetadataValue.text(topic),
                "penstock/format": MetadataValue.text(_format(nodes[0]["config"]["publish"].get("value"))),
            },
        )


def published_topic(node: Mapping[str, Any]) -> str | None:
    """The topic that a dbt node is published to."""
    publish = (node.get("config") or {}).get("publish")
    if not is_dynamic_table(node) or not isinstance(publish, Mapping) or not publish.get("topic"):
        return None
    return str(publish["topic"])


def _format(value: object) -> str:
    found = value.get("format") if isinstance(value, Mapping) else value
    return str(found or "json")


def part_key(name: str) -> AssetKey:
    return AssetKey([PLATFORM, name])


def part_specs() -> list[AssetSpec]:
    """What the streams run on."""
    return [
        AssetSpec(
            key=part_key(name),
            description=_ABOUT[name],
            group_name=PLATFORM,
            kinds={"kafka"} if name == "broker" else {"spark"} if name == "engine" else set(),
            tags={KIND_TAG: "part"},
        )
        for name in PARTS
    ]


def stream_keys(project: Project, translator: PenstockTranslator) -> dict[str, AssetKey]:
    """Stream -> the asset that it keeps up to date."""
    manifest, dbt = project.manifest, project.dbt
    strays = {want.stream: stray_key(want.stream) for want in project.strays()}
    return strays | {
        stream: translator.get_asset_spec(manifest, str(node["unique_id"]), dbt).key
        for stream, node in project.streams.items()
    }


def stray_specs(project: Project, translator: PenstockTranslator) -> list[AssetSpec]:
    """Deployed streams without a model or source of their own, below what they read: quarantines of sources, and
    what a model left."""
    manifest = project.manifest
    entries = [*manifest["nodes"].values(), *manifest["sources"].values()]
    known = {relation_of(entry): str(entry["unique_id"]) for entry in entries if "schema" in entry}
    made = []
    for want in project.strays():
        try:
            spec = StreamSpec.from_json(want.spec_json)
        except ValidationError:
            spec = None  # deployed by another version
        read = [item.relation for item in spec.inputs] if spec else []
        above = [translator.get_asset_spec(manifest, known[name], project.dbt) for name in read if name in known]
        bad = above[0] if above and spec is not None and spec.is_quarantine else None  # the source of bad records
        about = f"The records of {bad.key.to_user_string()} that could not be decoded." if bad else _STRAY
        made.append(
            AssetSpec(
                key=stray_key(want.stream),
                deps=sorted({each.key for each in above}),
                description=about,
                group_name=bad.group_name if bad else PLATFORM,
                kinds={"spark", "delta"},
                tags={KIND_TAG: "quarantine" if bad else "stream"},
                metadata={"penstock/stream": want.stream},
            )
        )
    return made


def stray_key(stream: str) -> AssetKey:
    return AssetKey(stream.split("."))


def _extended(spec: AssetSpec, props: Mapping[str, Any]) -> AssetSpec:
    if props["resource_type"] == "source":
        return _source(spec, props)
    if is_dynamic_table(props):
        publish = (props.get("config") or {}).get("publish") or {}
        stored = "delta" if publish.get("table", True) else "kafka"
        return spec.replace_attributes(kinds={"dbt", "spark", stored}).merge_attributes(
            tags={KIND_TAG: "dynamic_table"}, metadata={"penstock/stream": relation_of(props)}
        )
    return spec.merge_attributes(tags={KIND_TAG: str(props["resource_type"])})


def _source(spec: AssetSpec, props: Mapping[str, Any]) -> AssetSpec:
    if not is_stream(props):
        return spec.replace_attributes(kinds={"source"}).merge_attributes(tags={KIND_TAG: "source"})
    if is_source_table(props):
        facts = {**_topic(props), "penstock/stream": relation_of(props)}
        spec = spec.replace_attributes(kinds={"kafka", "spark", "delta"})
        return spec.merge_attributes(tags={KIND_TAG: "source_table"}, metadata=facts)
    return spec.replace_attributes(kinds={"kafka"}).merge_attributes(
        tags={KIND_TAG: "source_stream"}, metadata=_topic(props)
    )


def _topic(props: Mapping[str, Any]) -> dict[str, Any]:
    settings = own_settings(props)
    if not isinstance(settings, Mapping):
        return {}
    value = settings.get("value")
    found = {
        "topic": settings.get("topic") or settings.get("topic_pattern"),
        "format": value.get("format") if isinstance(value, Mapping) else None,
    }
    return {f"penstock/{name}": MetadataValue.text(str(text)) for name, text in found.items() if text}


def _owners(owner: Mapping[str, Any]) -> Sequence[str] | None:
    email = owner.get("email")
    emails = [email] if isinstance(email, str) else email or []
    found = [each for each in emails if _EMAIL.fullmatch(each)]
    if not found and owner.get("name"):
        found = [f"team:{re.sub(r'[^A-Za-z0-9_-]+', '_', str(owner['name']))}"]
    return found or None

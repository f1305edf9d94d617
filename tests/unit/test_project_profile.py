"""The target of profiles.yml as settings: where it is found, how it is rendered, and what a mistake says."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.errors.catalogue import NOT_A_PROJECT, PROFILE_INVALID
from penstock.paths import ProjectPaths
from penstock.project.maintenance import MaintenanceSettings
from penstock.project.profile import (
    EngineSettings,
    KafkaSettings,
    RuntimeSettings,
    TopicSettings,
    load_profile,
    read_settings,
    save_settings,
)

MAINTAINED = """\
shop:
  target: dev
  outputs:
    dev: {type: penstock, schema: shop, maintenance: %s}
"""
PROFILE = """\
shop:
  target: dev
  outputs:
    dev:
      type: penstock
      schema: shop
      threads: 4
      kafka:
        embedded: true
        topics: {clicks: {partitions: 2}}
      engine:
        memory: 2g
        spark_conf: {spark.x: 1, spark.y: true}
    cluster:
      type: penstock
      schema: "{{ env_var('SHOP_SCHEMA', 'live') }}"
      store: postgresql://db/penstock
      kafka:
        bootstrap.servers: "{{ env_var('SHOP_BROKER') }}"
        kafka.client.id: shop
      engine: {port: "{{ env_var('SHOP_PORT', '15002') | as_number }}"}
    other: {type: spark, schema: x, whatever: "{{ env_var('NEVER_SET_ANYWHERE') }}"}
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("DBT_TARGET", "DBT_PROFILE", "DBT_PROFILES_DIR", "SHOP_BROKER", "SHOP_SCHEMA", "SHOP_PORT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "shop"
    directory.mkdir()
    (directory / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (directory / "profiles.yml").write_text(PROFILE)
    return directory


def failure(project: Path, target: str | None = None) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        load_profile(project, target=target)
    return caught.value


def test_the_default_target(project: Path) -> None:
    assert load_profile(project) == RuntimeSettings(
        target="dev",
        schema="shop",
        kafka=KafkaSettings(embedded=True, topics={"clicks": TopicSettings(partitions=2)}),
        engine=EngineSettings(memory="2g", spark_conf={"spark.x": "1", "spark.y": "true"}),
    )


def test_a_target_with_jinja(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_BROKER", "broker:9092")
    settings = load_profile(project, target="cluster")
    assert (settings.schema, settings.store, settings.engine.port) == ("live", "postgresql://db/penstock", 15002)
    assert settings.kafka == KafkaSettings(bootstrap="broker:9092", options={"kafka.client.id": "shop"})


def test_the_target_of_the_environment(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_BROKER", "broker:9092")
    monkeypatch.setenv("DBT_TARGET", "cluster")
    assert load_profile(project).target == "cluster"
    assert load_profile(project, target="dev").target == "dev"


def test_files_are_searched_in_the_order_of_dbt(project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(directory: Path, schema: str) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "profiles.yml").write_text(PROFILE.replace("schema: shop", f"schema: {schema}"))
        return directory

    (project / "profiles.yml").unlink()
    put(tmp_path / "home" / ".dbt", "home")
    assert load_profile(project).schema == "home"
    put(project / "profiles", "below")
    assert load_profile(project).schema == "below"
    put(project, "beside")
    assert load_profile(project).schema == "beside"
    monkeypatch.setenv("DBT_PROFILES_DIR", str(put(tmp_path / "env", "env")))
    assert load_profile(project).schema == "env"
    assert load_profile(project, profiles_dir=put(tmp_path / "given", "given")).schema == "given"


MISTAKES = [
    pytest.param("threads: 4", "thread: 4", 7, "Did you mean 'threads'?", id="unknown key"),
    pytest.param("embedded: true", "embeded: true", 9, "Did you mean 'embedded'?", id="unknown key of kafka"),
    pytest.param("memory: 2g", "memroy: 2g", 12, "Did you mean 'memory'?", id="unknown key of the engine"),
    pytest.param("{partitions: 2}", "{partition: 2}", 10, "Did you mean 'partitions'?", id="unknown key of a topic"),
    pytest.param("memory: 2g", "memory: lots", 12, "engine.memory", id="wrong memory"),
    pytest.param("{partitions: 2}", "{partitions: 0}", 10, "kafka.topics.clicks.partitions", id="no partitions"),
    pytest.param("embedded: true", "embedded: true\n        bootstrap.servers: b:1", 9, "Keep one", id="two brokers"),
    pytest.param("type: penstock", "type: spark", 5, "not penstock", id="another adapter"),
    pytest.param("      schema: shop\n", "", 4, "has no schema", id="no schema"),
    pytest.param("target: dev", "target: dve", 3, "Did you mean 'dev'?", id="unknown target"),
    pytest.param("shop:\n", "shopp:\n", None, "Did you mean 'shopp'?", id="unknown profile"),
    pytest.param("threads: 4", "kafka: true\n      threads: 4", 7, "must be a mapping", id="kafka as a word"),
    pytest.param("schema: shop", "schema: \"{{ env_var('NOT_SET') }}\"", 6, "NOT_SET", id="variable not set"),
    pytest.param("schema: shop", 'schema: "{{ oops"', 6, "cannot be rendered", id="broken Jinja"),
]


@pytest.mark.parametrize(("old", "new", "line", "said"), MISTAKES)
def test_a_mistake_has_its_line(old: str, new: str, line: int | None, said: str, project: Path) -> None:
    text = PROFILE.replace(old, new, 1)
    if new.startswith("kafka: true"):
        text = text.replace("      kafka:\n        embedded: true\n        topics: {clicks: {partitions: 2}}\n", "")
    (project / "profiles.yml").write_text(text)
    problem = failure(project)
    assert problem.kind is PROFILE_INVALID
    assert str(problem.at) == ("profiles.yml" if line is None else f"profiles.yml:{line}")
    assert said in str(problem)


def test_a_file_that_is_not_yaml(project: Path) -> None:
    (project / "profiles.yml").write_text("shop: [\n")
    assert "is not YAML" in str(failure(project))


def test_no_profiles_file_says_where_it_was_looked_for(project: Path) -> None:
    (project / "profiles.yml").unlink()
    assert str(project / "profiles") in str(failure(project))


def test_no_project_here(tmp_path: Path) -> None:
    assert failure(tmp_path).kind is NOT_A_PROJECT


def test_settings_are_kept_for_the_owner_alone(project: Path) -> None:
    paths = ProjectPaths(project)
    settings = load_profile(project)
    save_settings(paths, settings)
    save_settings(paths, settings)
    assert read_settings(paths) == settings
    assert stat.S_IMODE((paths.home / "settings.json").stat().st_mode) == 0o600
    assert [path.name for path in paths.home.iterdir()] == ["settings.json"]


def test_settings_that_are_missing_or_damaged_name_the_next_step(project: Path) -> None:
    paths = ProjectPaths(project)
    with pytest.raises(PenstockError, match="penstock up"):
        read_settings(paths)
    paths.home.mkdir()
    (paths.home / "settings.json").write_text("{")
    with pytest.raises(PenstockError, match="damaged"):
        read_settings(paths)


def test_maintenance_of_all_tables_is_read_and_a_mistake_in_it_is_told(project: Path) -> None:
    assert load_profile(project).maintenance == MaintenanceSettings()
    (project / "profiles.yml").write_text(MAINTAINED % "{every: 2 hours, keep: 7 days}")
    assert load_profile(project).maintenance == MaintenanceSettings(every=7_200_000, keep=604_800_000)
    for wrong, said in (
        ("{keep: 5 minutes}", "setting 'maintenance.keep' has a wrong value: value error, it is at least an hour"),
        ("{kept: 7 days}", "setting 'kept' is unknown"),
    ):
        (project / "profiles.yml").write_text(MAINTAINED % wrong)
        with pytest.raises(PenstockError, match=said) as caught:
            load_profile(project)
        assert caught.value.kind is PROFILE_INVALID

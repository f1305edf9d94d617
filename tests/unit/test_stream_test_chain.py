"""Which streams a test runs, and how it names things."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from model_files import Project as Files
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.errors import Location, PenstockError
from penstock.testing.cases import Case, StreamTest
from penstock.testing.chain import Project, parts
from penstock.testing.versions import render

HERE = Location("tests/streams/a.yml", 3)


@pytest.fixture
def project() -> Project:
    files = Files("shop")
    files.source("clicks", "clicks", {"item": "string", "at": "timestamp"})
    files.source("items", "items", {"item": "string"})
    files.table("items")
    files.model("clean", "select c.item, c.at from {clicks} as c join {items} as i on c.item = i.item")
    files.model("views", "select item, count(*) as n from {clean} group by item")
    files.model("report", "select * from {views}", materialized="view")
    manifest: dict[str, Any] = {"nodes": files._nodes, "sources": files._sources}
    return Project(manifest, Path("nowhere"))


def case(model: Any, *steps: Any, **more: Any) -> Case:
    test = StreamTest.model_validate({"name": "t", "model": model, "steps": list(steps) or ["restart"], **more})
    return Case(test, "tests/streams/a.yml", 3, (3,) * len(test.steps))


def kinds(project: Project, of: Case) -> dict[str, str]:
    return {part.relation: part.kind for part in parts(project, of)}


def test_streams_between_the_inputs_and_the_model_are_run_upstream_first(project: Project) -> None:
    found = kinds(project, case("report", {"input": {"raw.clicks": []}}))
    assert found == {"shop.items": "seed", "shop.clean": "stream", "shop.views": "stream", "shop.report": "view"}
    assert list(found)[-3:] == ["shop.clean", "shop.views", "shop.report"]


def test_a_table_that_is_given_is_not_run_and_what_is_above_it_is_not_started(project: Project) -> None:
    files_below = kinds(project, case("views", {"input": {"clean": [{"item": "a"}]}}))
    assert files_below == {"shop.items": "seed", "shop.clean": "fed", "shop.views": "stream"}
    above = kinds(project, case("report", {"input": {"views": []}}))
    assert above == {"shop.items": "seed", "shop.clean": "shape", "shop.views": "fed", "shop.report": "view"}


def test_rows_that_are_given_stand_in_for_a_seed_and_what_is_looked_at_is_run(project: Project) -> None:
    found = kinds(project, case("clean", {"expect": {"ref('views')": []}}, given={"items": [{"item": "a"}]}))
    assert found == {"shop.items": "given", "shop.clean": "stream", "shop.views": "stream"}


def test_a_thing_has_several_names(project: Project) -> None:
    for name in ("clicks", "raw.clicks", "shop_raw.clicks", "source('raw', 'clicks')", 'source("raw","clicks")'):
        assert project.find(name, HERE) == "source.test.raw.clicks"
    assert project.find("items", HERE) == "seed.test.items"  # and not the source of that name
    assert project.find("raw.items", HERE) == "source.test.raw.items"
    assert project.find("ref('clean')", HERE) == project.find("shop.clean", HERE) == "model.test.clean"


def test_a_name_that_is_nobody_s_is_told_with_the_nearest(project: Project) -> None:
    with pytest.raises(PenstockError, match=r"PEN-6002 tests/streams/a.yml:3: .* no 'clena'. Did you mean 'clean'"):
        project.find("clena", HERE)
    with pytest.raises(PenstockError, match="PEN-6002"):
        parts(project, case("nothing"))


def test_a_new_version_is_rendered_without_dbt(project: Project) -> None:
    sql, config = render(
        "{{ config(unique_key='item') }} select item from {{ source('raw', 'clicks') }} join {{ ref('items') }} "
        "where {{ var('x', 1) }} = 1",
        project,
        HERE,
    )
    assert sql.split() == ["select", "item", "from", "shop_raw.clicks", "join", "shop.items", "where", "1", "=", "1"]
    assert config == {"unique_key": "item"}
    changed = project.changed("model.test.clean", sql, {"deduplicate_by": "item"}, sql)
    assert changed.deduplicate_by == ("item",)
    for wrong in ("{{ my_macro() }}", "{{ var('x') }}", "{% if %}"):
        with pytest.raises(PenstockError, match="PEN-6005"):
            render(wrong, project, HERE)


def test_a_project_without_stream_tests_says_where_they_belong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "dbt_project.yml").write_text("name: shop\n")
    done = CliRunner().invoke(app, ["test"])
    assert done.exit_code == 2
    assert "PEN-6004 The project has no stream tests." in done.stderr
    assert "tests/streams/" in done.stderr

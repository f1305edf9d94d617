"""Stream tests as they are written: what is understood, what is refused, and with which words."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.testing.cases import Deploy, Error, Fixture, Rows, Step, StreamTest, chosen, find, read, read_all
from penstock.testing.encoding import WORDS

GOOD = """\
stream_tests:
  - name: late
    model: views
    given:
      items: [{id: a}]
    steps:
      - input:
          shop.clicks: [{id: 1}]
          shop.orders: {fixture: orders.jsonl.gz, limit: 3}
      - advance_watermark: 2026-01-01 10:00:00
      - restart
      - kill:
      - deploy: {file: new.sql, verdict: RESTART}
      - expect: [{id: 1}]
      - expect:
          views: {rows: [{id: 1}], subset: true}
      - expect_quarantine: []
      - expect_warnings: []
      - expect_error: PEN-4030
  - name: other
    model: [clicks, views]
    steps: [restart]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "tests" / "streams").mkdir(parents=True)
    return tmp_path


def wrong(project: Path, text: str) -> PenstockError:
    file = project / "tests" / "streams" / "a.yml"
    file.write_text(text)
    with pytest.raises(PenstockError) as problem:
        read(file, project)
    return problem.value


def test_every_step_is_read_with_its_line(project: Path) -> None:
    file = project / "tests" / "streams" / "a.yml"
    file.write_text(GOOD)
    late, other = read(file, project)
    assert [step.kind for step in late.test.steps] == [
        "input", "advance_watermark", "restart", "kill", "deploy", "expect", "expect", "expect_quarantine",
        "expect_warnings", "expect_error",
    ]  # fmt: skip
    assert str(late.at()) == "tests/streams/a.yml:2"
    assert [late.at(step).line for step in (0, 1, 4)] == [7, 10, 13]
    assert late.test.steps[0].input == {
        "shop.clicks": [{"id": 1}],
        "shop.orders": Fixture(fixture="orders.jsonl.gz", limit=3),
    }
    assert late.test.steps[6].expect == {"views": Rows(rows=[{"id": 1}], subset=True)}
    assert other.test.model == ["clicks", "views"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stream_tests: [", "tests/streams/a.yml:1: expected the node content"),
        ("models: []", "tests/streams/a.yml:1: the file has one key, 'stream_tests'"),
        ("stream_tests:\n  - name: x\n    steps: [restart]\n", "tests/streams/a.yml:2: 'x': 'model' is missing"),
        ("stream_tests:\n  - name: x\n    model: m\n    steps:\n      - restrat\n", "a.yml:5: 'x': "),
        (
            "stream_tests:\n  - name: x\n    model: m\n    steps:\n      - expects: []\n",
            "a.yml:5: 'x': 'expects' is unknown. Did you mean 'expect'?",
        ),
        (
            "stream_tests:\n  - name: x\n    model: m\n    steps:\n      - {restart: , kill: }\n",
            "a.yml:5: 'x': a step has one key",
        ),
        (
            "stream_tests:\n  - name: x\n    model: m\n    steps:\n      - expect: {m: {rows: [], subest: true}}\n",
            "a.yml:5: 'x': 'subest' is unknown. Did you mean 'subset'?",
        ),
        (
            "stream_tests:\n  - name: x\n    model: m\n    steps:\n      - deploy: {verdict: MAYBE}\n",
            "a.yml:5: 'x': 'verdict': input should be 'NO-OP'",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_line(project: Path, text: str, message: str) -> None:
    problem = wrong(project, text)
    assert problem.code == "PEN-6001"
    assert message in str(problem)


def test_a_name_is_there_once_in_a_project(project: Path) -> None:
    for name in ("a.yml", "b.yaml"):
        (project / "tests" / "streams" / name).write_text("stream_tests: [{name: x, model: m, steps: [restart]}]")
    with pytest.raises(PenstockError, match=r"PEN-6001 tests/streams/b.yaml:1: the name 'x' is taken"):
        read_all(project)


def test_files_lie_in_two_places_and_tests_are_chosen_by_name_model_file_and_keyword(project: Path) -> None:
    (project / "tests" / "streams" / "a.yml").write_text(GOOD)
    (project / "stream_tests" / "deep").mkdir(parents=True)
    more = project / "stream_tests" / "deep" / "c.yml"
    more.write_text("stream_tests: [{name: third, model: m, steps: [restart]}]")
    assert find(project)[0] == more
    cases = read_all(project)
    names = {case.name for case in cases}
    assert names == {"late", "other", "third"}
    assert [case.name for case in chosen(cases, ["clicks"], None)] == ["other"]
    assert [case.name for case in chosen(cases, ["c.yml"], None)] == ["third"]
    assert {case.name for case in chosen(cases, ["views"], "LAT")} == {"late"}


def test_the_documentation_has_every_key_and_word() -> None:
    page = (Path(__file__).parents[2] / "docs" / "stream-tests.md").read_text(encoding="utf-8")
    models = (StreamTest, Step, Fixture, Rows, Deploy, Error)
    lines = [f"| `{name}` | {field.description} |" for model in models for name, field in model.model_fields.items()]
    assert not [line for line in lines if line not in page]
    assert not [word for word in WORDS if f"`{word}`" not in page]


def test_the_demo_s_tests_can_be_read_and_name_each_model() -> None:
    project = Path(__file__).parents[2]
    named = {name for case in read_all(project) for name in case.test.model}
    assert named == {file.stem for file in (project / "models").glob("*.sql")}

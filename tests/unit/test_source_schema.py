"""One set of models: what the editor's schema takes, the examples in docs, and what is validated are the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from source_files import column, read_all, table
from typer.testing import CliRunner

from penstock.cli.main import app
from penstock.compiler.formats import DECODERS
from penstock.errors import PenstockError
from penstock.project.formats import FORMATS
from penstock.project.schema import source_file_schema

ROOT = Path(__file__).parents[2]
EXAMPLES = re.findall(
    r"```yaml\n(sources:.*?)```", (ROOT / "docs" / "sources.md").read_text(encoding="utf-8"), re.DOTALL
)
DEMO = [(ROOT / "sources" / "shop.yml").read_text(), (ROOT / "tests/unit/fixtures/shop/sources/shop.yml").read_text()]


def as_json(text: str) -> Any:
    return json.loads(json.dumps(yaml.safe_load(text), default=str))


@pytest.fixture(scope="module")
def schema() -> jsonschema.Draft7Validator:
    found = source_file_schema()
    jsonschema.Draft7Validator.check_schema(found)
    return jsonschema.Draft7Validator(found)


def test_the_page_has_examples() -> None:
    assert len(EXAMPLES) >= 4


@pytest.mark.parametrize("text", EXAMPLES)
def test_an_example_of_the_page_is_a_source_of_a_project(text: str, tmp_path: Path) -> None:
    assert read_all(text, tmp_path)


@pytest.mark.parametrize("text", [*EXAMPLES, *DEMO])
def test_the_schema_takes_what_is_right(text: str, schema: jsonschema.Draft7Validator) -> None:
    assert [error.message for error in schema.iter_errors(as_json(text))] == []


WRONG = [
    table("{topik: t}"),
    table("{topic: [t]}"),
    table("{topic: t, start: erliest}"),
    table("{topic: t, start: {time: x}}"),
    table("{topic: t, value: {format: jsonn}}"),
    table("{topic: t, value: {format: csv, delimeter: x}}"),
    table("{topic: t, sasl.password: written-out}"),
    table("{topic: t, security.protocol: TLS}"),
    table("{topic: t, watermark: {colum: a, delay: 1 hour}}"),
    table("{topic: t}", column("a", "int", **{"from": "header()"})),
    table("{topic: t}", column("a", "int", form="key")),
]


@pytest.mark.parametrize("text", WRONG)
def test_the_schema_refuses_what_the_compiler_refuses(
    text: str, schema: jsonschema.Draft7Validator, tmp_path: Path
) -> None:
    assert list(schema.iter_errors(as_json(text)))
    with pytest.raises(PenstockError):
        read_all(text, tmp_path)


def test_every_setting_has_a_description_in_the_editor() -> None:
    for name, model in source_file_schema()["$defs"].items():
        for key, value in model.get("properties", {}).items():
            assert value.get("description"), f"{name}.{key}"


def test_every_format_has_settings_and_a_decoder() -> None:
    assert set(FORMATS) == set(DECODERS)


def test_the_command_prints_the_schema() -> None:
    result = CliRunner().invoke(app, ["schema"])
    assert result.exit_code == 0
    assert json.loads(result.stdout) == source_file_schema()

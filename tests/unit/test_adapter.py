"""The dbt adapter, without an engine."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from dbt.artifacts.resources.v1.components import DependsOn
from dbt.artifacts.resources.v1.macro import MacroDependsOn
from dbt_common.exceptions import DbtRuntimeError

from dbt.adapters.penstock.credentials import PenstockCredentials
from dbt.adapters.penstock.errors import StreamError, spark_sentence
from dbt.adapters.penstock.session import QueryError, bind, literal, statements
from dbt.adapters.penstock.sources import read_by
from dbt.adapters.penstock.streams import Request, compiled, with_inputs
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import MODEL_SYNTAX
from penstock.project.profile import load_profile

PROFILES = """\
shop:
  target: dev
  outputs:
    dev:
      type: penstock
      schema: shop
      threads: 2
      store: postgresql://db/penstock
      kafka:
        bootstrap.servers: localhost:9092
        kafka.security.protocol: SASL_SSL
        sasl.mechanisms: SCRAM-SHA-256
        sasl.username: penstock
        sasl.password: {env_var: KAFKA_PASSWORD}
      engine:
        memory: 2g
        spark_conf: {spark.sql.adaptive.enabled: false}
"""


def credentials(**values: Any) -> PenstockCredentials:
    return PenstockCredentials.from_dict({"schema": "shop", **values})


def test_a_target_needs_no_more_than_a_schema() -> None:
    target = credentials()
    assert (target.type, target.schema, target.database) == ("penstock", "shop", None)


def test_a_misspelt_setting_of_a_target_is_an_error_with_the_right_name() -> None:
    with pytest.raises(DbtRuntimeError, match=r"PEN-5004 Setting 'kafak' .* Did you mean 'kafka'"):
        credentials(kafak={})


def test_a_target_without_schema_is_an_error() -> None:
    with pytest.raises(DbtRuntimeError, match="has no schema"):
        PenstockCredentials.from_dict({})


def test_a_wrong_value_below_kafka_names_the_setting() -> None:
    with pytest.raises(PenstockError, match=r"PEN-5004 Setting 'kafka.port' of target 'dev'"):
        credentials(kafka={"port": 70000}).settings("dev")


def test_dbt_and_penstock_up_read_the_same_settings_from_a_profile(tmp_path: Path) -> None:
    import yaml

    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\n")
    (tmp_path / "profiles.yml").write_text(PROFILES)
    target = yaml.safe_load(PROFILES)["shop"]["outputs"]["dev"]
    given = {key: value for key, value in target.items() if key not in ("type", "threads")}
    assert PenstockCredentials.from_dict(given).settings("dev") == load_profile(tmp_path)


def test_what_dbt_prints_of_a_connection_has_no_address_of_the_store() -> None:
    shown = dict(credentials(store="postgresql://me:secret@db/penstock").connection_info())
    assert shown == {"schema": "shop"}


def test_an_error_of_the_catalogue_is_shown_as_its_own_line() -> None:
    error = MODEL_SYNTAX.error("the SQL cannot be read near 'frm'.", at=Location("models/a.sql", 4))
    shown = StreamError(error)
    shown.stack = ["macro materialization_dynamic_table_penstock", "macro deploy"]
    assert str(shown).splitlines() == ["Runtime Error", f"  {error}"]


def test_spark_speaks_without_plan_and_without_the_stack_of_the_jvm() -> None:
    text = (
        "[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved. SQLSTATE: 42703; line 1 pos 7;\n"
        "'Project ['nope]\n+- Relation shop.t[a#1] parquet\n\n\n"
        "JVM stacktrace:\norg.apache.spark.sql.AnalysisException\n\tat org.apache.spark.A.b(A.scala:1)"
    )
    expected = "[UNRESOLVED_COLUMN] A column with name `nope` cannot be resolved. SQLSTATE: 42703; line 1 pos 7"
    assert spark_sentence(text) == expected


def test_the_line_that_a_syntax_error_marks_is_kept() -> None:
    text = (
        "\n[PARSE_SYNTAX_ERROR] Syntax error at or near 'shop'.\n\n== SQL ==\nselect * frm shop.t\n-------------^^^\n"
    )
    assert spark_sentence(text + "\n\nJVM stacktrace:\nx") == text.strip()


@pytest.mark.parametrize(
    ("value", "sql"),
    [
        (None, "null"),
        (True, "true"),
        (12, "12"),
        (Decimal("1E+2"), "100"),
        (0.1, "'0.1'"),
        (dt.date(2026, 1, 2), "date '2026-01-02'"),
        (dt.datetime(2026, 1, 2, 3, 4, 5, 60), "timestamp '2026-01-02 03:04:05.000060'"),
        ("it's", r"'it\'s'"),
        ("\\'; drop table x; --", r"'\\\'; drop table x; --'"),
    ],
)
def test_a_value_is_bound_as_a_literal(value: Any, sql: str) -> None:
    assert literal(value) == sql


def test_a_bound_value_is_not_read_as_a_place_for_the_next_one() -> None:
    assert bind("select %s, %s", ["%s", 1]) == "select '%s', 1"


def test_too_few_values_are_an_error() -> None:
    with pytest.raises(QueryError, match="2 places for 1 values"):
        bind("select %s, %s", [1])


def test_with_empty_a_stream_is_still_analysed_on_its_inputs() -> None:
    emptied = (
        "select * from (select * from shop.clicks where false limit 0) as c "
        "join (select * from `a`.`b` where false limit 0)"
    )
    assert with_inputs(emptied) == "select * from shop.clicks as c join `a`.`b`"


def test_a_limit_that_the_author_wrote_stays() -> None:
    written = "select * from (select a from shop.clicks where false limit 0)"
    assert with_inputs(written) == written


def test_a_python_model_is_refused(tmp_path: Path) -> None:
    model = {"name": "m", "unique_id": "model.p.m", "language": "python", "original_file_path": "models/m.py"}
    with pytest.raises(PenstockError, match=r"PEN-1308 models/m.py: m is a Python model"):
        compiled(Request(model, "", {}, full_refresh=False, empty=False), tmp_path, tmp_path)


def test_the_models_that_a_run_rebuilds_are_those_that_dbt_refreshes_and_those_that_say_apply() -> None:
    own = {
        "a": {}, "never": {"full_refresh": False}, "always": {"full_refresh": True},
        "apply": {"full_refresh": False, "on_configuration_change": "apply"},
    }  # fmt: skip
    nodes = {
        f"model.p.{name}": {
            "resource_type": "model", "schema": "shop", "alias": name, "name": name, "path": f"{name}.sql",
            "original_file_path": f"models/{name}.sql", "config": {"materialized": "dynamic_table", **config},
            "unrendered_config": config,
        }
        for name, config in own.items()
    }  # fmt: skip

    def together(*, run_refreshes: bool) -> set[str]:
        model = nodes["model.p.always"]
        return Request(
            model, "", {"nodes": nodes}, full_refresh=True, empty=False, selected=tuple(nodes),
            run_refreshes=run_refreshes,
        ).together()  # fmt: skip

    assert together(run_refreshes=True) == {"shop.a", "shop.always", "shop.apply"}
    assert together(run_refreshes=False) == {"shop.always", "shop.apply"}


def test_the_adapter_is_imported_without_spark_pandas_or_the_store() -> None:
    heavy = "{'pyspark', 'pandas', 'pyarrow', 'grpc', 'sqlalchemy', 'sqlglot', 'confluent_kafka'}"
    code = f"import dbt.adapters.penstock, sys; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_project_with_a_dynamic_table_is_parsed_without_an_engine(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "dbt_project.yml").write_text("name: shop\nprofile: shop\nflags: {send_anonymous_usage_stats: false}\n")
    (tmp_path / "profiles.yml").write_text(PROFILES)
    (tmp_path / "models" / "m.sql").write_text("{{ config(materialized='dynamic_table') }} select 1 as a")
    code = "from dbt.cli.main import dbtRunner; r = dbtRunner().invoke(['parse', '-q']); assert r.success, r.exception"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, env=_plain_environment()
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / ".penstock").exists()


def _plain_environment() -> dict[str, str]:
    import os

    return {key: value for key, value in os.environ.items() if not key.startswith("DBT_")} | {"DO_NOT_TRACK": "1"}


def test_a_seed_reads_no_source() -> None:
    seed = SimpleNamespace(depends_on=MacroDependsOn())
    model = SimpleNamespace(depends_on=DependsOn(nodes=["source.shop.web.clicks"]))
    entry = SimpleNamespace(to_dict=lambda **_: {"name": "clicks"})
    sources = {"source.shop.web.clicks": entry}
    assert read_by(seed, {}, sources) == {}
    assert read_by(model, {}, sources) == {"source.shop.web.clicks": {"name": "clicks"}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1;\n", ["select 1"]),
        ("select ';' as a -- ; no\n", ["select ';' as a -- ; no"]),
        ("set time zone 'UTC';\nselect 1;", ["set time zone 'UTC'", "select 1"]),
        ("begin\n  declare a int;\n  select a;\nend", ["begin\n  declare a int;\n  select a;\nend"]),
        ("select 'never closed; x", ["select 'never closed; x"]),
    ],
)
def test_a_header_is_a_statement_of_its_own(text: str, expected: list[str]) -> None:
    assert statements(text) == expected

"""dbt's public adapter tests, taken from the installed package as they are.

Rules
- Every class of `dbt.tests.adapter` that has tests is run, unless OUTSIDE names it with a reason. A class that a new
  version of the package brings is run without anybody's doing.
- A class is run as it is. Where the package leaves something to the adapter (names of types, SQL of a dialect), the
  file of the group hands over a class that fills it in; it may not take a test away.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import dbt.tests.adapter
import pytest
import sqlglot

ROOT = Path(next(iter(dbt.tests.adapter.__path__)))

BASE = "holds what its subclasses share; they are run"
POSTGRES = "is about PostgreSQL alone"
GRANTS = "the catalog of the engine has no users to grant anything to"
PYTHON = "Python models and Python functions are not taken: the engine runs SQL"
JAVASCRIPT = "Spark has no functions in JavaScript"
AGGREGATE = "Spark SQL has no aggregate functions written in SQL"
VIEWS = "Spark has no materialized views; a dynamic table is what stands in their place, with tests of its own"

TWO_WAYS = "an adapter runs the one of the two classes that is its own; the other one is run"

OUTSIDE: Mapping[str, str] = {
    "aliases.test_aliases.BaseSameAliasDifferentDatabases": "Spark has schemas, and no databases above them",
    "caching.test_caching.BaseCachingTest": BASE,
    "catalog.relation_types.CatalogRelationTypes": VIEWS,
    "column_types.test_column_types.BasePostgresColumnTypes": POSTGRES,
    "constraints.test_constraints.BaseConstraintsColumnsEqual": BASE,
    "constraints.test_constraints.BaseContractSqlHeader": BASE,
    "basic.test_get_catalog_for_single_relation.BaseGetCatalogForSingleRelation": "dbt asks this of an adapter that "
    "declares the capability GetCatalogForSingleRelation; this one does not",
    "dbt_clone.test_dbt_clone.BaseCloneNotPossible": "is about an adapter that cannot clone; Delta can",
    "dbt_clone.test_dbt_clone.BaseCloneSameTargetAndState": "wants a clone of a relation onto itself to fail; here "
    "it is left as it is, which BaseCloneSameSourceAndTarget wants",
    "empty.test_empty.BaseTestEmptySeedFlag": "needs 'dbt seed --empty', which dbt-core 1.11 does not have",
    "dbt_debug.test_dbt_debug.BaseDebugPostgres": POSTGRES,
    "dbt_debug.test_dbt_debug.BaseDebugInvalidProjectPostgres": POSTGRES,
    **{f"functions.test_js_udfs.{name}": JAVASCRIPT for name in (
        "BasicJSUDF", "JSUDFMultiLineBody", "JSUDFDeterministicVolatility", "JSUDFNonDeterministicVolatility",
        "JSUDFStableVolatilityWarns", "JSUDFDefaultArgSupport", "BasicJSAggregateUDF",
        "JSAggregateUDFVolatilityIgnored",
    )},
    "functions.test_udafs.UDAFBase": BASE,
    "functions.test_udafs.BasicSQLUDAF": AGGREGATE,
    **{f"functions.test_udafs.{name}": PYTHON for name in ("BasicPythonUDAF", "PythonUDAFDefaultArgSupport")},
    "functions.test_udfs.CanFindScalarFunctionRelation": "Spark has functions and relations in namespaces of their "
    "own; a function is no relation",
    **{f"functions.test_udfs.{name}": PYTHON for name in (
        "PythonUDFSupported", "PythonUDFRuntimeVersionRequired", "PythonUDFEntryPointRequired",
        "PythonUDFDefaultArgSupport", "PythonUDFVolatilitySupport", "PythonUDFWithPackagesSupported",
    )},
    **{f"grants.test_{name.lower()}_grants.Base{name}Grants": GRANTS for name in (
        "Incremental", "Invalid", "Model", "Seed", "Snapshot",
    )},
    "materialized_view.basic.MaterializedViewBasic": VIEWS,
    **{f"materialized_view.changes.MaterializedViewChanges{name}": VIEWS for name in (
        "", "ApplyMixin", "ContinueMixin", "FailMixin",
    )},
    **{f"python_model.test_python_model.BasePython{name}Tests": PYTHON for name in (
        "Model", "Incremental", "MetaGet", "Empty", "Sample",
    )},
    "python_model.test_spark.BasePySparkTests": PYTHON,
    "simple_copy.test_simple_copy.SimpleCopyBase::test_simple_copy_with_materialized_views": VIEWS,
    "utils.base_array_utils.BaseArrayUtils": BASE,
    "utils.base_utils.BaseUtils": BASE,
    "utils.data_types.base_data_type_macro.BaseDataTypeMacro": BASE,
    "utils.test_current_timestamp.BaseCurrentTimestamp": BASE,
    "utils.test_current_timestamp.BaseCurrentTimestampNaive": TWO_WAYS,
    "utils.test_escape_single_quotes.BaseEscapeSingleQuotesQuote": TWO_WAYS,
}  # fmt: skip


def found() -> Iterator[tuple[str, type]]:
    """`basic.test_base.BaseSimpleMaterializations` and the class, of every class that has tests."""
    for file in sorted(ROOT.rglob("*.py")):
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts)
        if module.endswith("__init__"):
            continue
        for name, value in vars(importlib.import_module(f"dbt.tests.adapter.{module}")).items():
            mine = inspect.isclass(value) and value.__module__ == f"dbt.tests.adapter.{module}"
            # A class `Test…` is how the package runs its own on PostgreSQL.
            if mine and not name.startswith("Test") and any(each.startswith("test_") for each in dir(value)):
                yield f"{module}.{name}", value


def left_out(reason: str) -> Callable[[Any], None]:
    """A test that is shown as skipped; pytest takes a lambda for no test."""

    @pytest.mark.skip(reason=reason)
    def test(self: Any) -> None: ...

    return test


def group(*names: str, **fillings: type | tuple[type, ...]) -> dict[str, Any]:
    """What a test file has in its namespace: a class `Test…` for each class of the folders `names`.

    `fillings` are by the name of the class: one class, or several when the same tests run in several ways.
    """
    made: dict[str, Any] = {}
    unused = set(fillings)
    for path, base in found():
        if path.split(".")[0] not in names or path in OUTSIDE:
            continue
        unused.discard(base.__name__)
        given = fillings.get(base.__name__, ())
        left = {test: left_out(OUTSIDE[f"{path}::{test}"]) for test in dir(base) if f"{path}::{test}" in OUTSIDE}
        ways = given if isinstance(given, tuple) else (given,)
        for way in ways:
            name = f"Test{base.__name__}" + (f"_{way.__name__}" if len(ways) > 1 else "")
            made[name] = type(name, (way, base), {"dbt": path} | left)
        if not ways:
            made[f"Test{base.__name__}"] = type(f"Test{base.__name__}", (base,), {"dbt": path} | left)
    assert not unused, f"no such class of the package: {unused}"
    return made


def translated_project(project: Any) -> Any:
    """The project, with PostgreSQL's statements run as Spark's."""
    run_sql = project.run_sql

    def run(sql: str, fetch: str | None = None) -> Any:
        # Spark has no database above a schema.
        plain = sql.replace("{database}.", "").replace(f"{project.database}.", "").format(schema=project.test_schema)
        found = None
        for statement in sqlglot.transpile(plain, read="postgres", write="spark"):
            found = run_sql(statement.replace("{", "{{").replace("}", "}}"), fetch=fetch)
        return found

    project.run_sql = run
    return project


class Translated:
    """A filling: statements that a class of the package runs by itself are PostgreSQL's, and run as Spark's."""

    @pytest.fixture(scope="class")
    def project(self, project: Any) -> Any:
        return translated_project(project)

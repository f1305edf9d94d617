"""The functions that a model calls, compiled for its deployment."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from dbt.artifacts.resources.types import NodeType
from dbt.artifacts.resources.v1.function import DeferFunction, FunctionConfig, FunctionReturns

from dbt.adapters.penstock.called import with_functions

RATE, TAXED, OTHER = "function.shop.rate", "function.shop.with_tax", "function.shop.other"
MODEL = "model.shop.taxed"


def graph() -> dict[str, Any]:
    """A model that calls a function which calls another, as dbt has them before any function is compiled."""
    functions = {
        unique_id: {
            "unique_id": unique_id, "schema": "dev", "alias": unique_id.rpartition(".")[2], "compiled_code": None,
            "raw_code": "{{ var('rate') }}", "arguments": [], "returns": {"data_type": "double"},
            "depends_on": {"nodes": nodes},
        }
        for unique_id, nodes in ((RATE, []), (TAXED, [RATE]), (OTHER, []))
    }  # fmt: skip
    return {"nodes": {MODEL: {"unique_id": MODEL, "depends_on": {"nodes": [TAXED]}}}, "functions": functions}


def manifest(deferred: DeferFunction | None = None) -> Any:
    functions = {each: SimpleNamespace(unique_id=each, defer_function=None) for each in (RATE, OTHER)}
    return SimpleNamespace(functions={**functions, TAXED: SimpleNamespace(unique_id=TAXED, defer_function=deferred)})


def deferred(body: str | None) -> DeferFunction:
    return DeferFunction(
        database=None, schema="prod", alias="with_tax", resource_type=NodeType.Function,
        name="with_tax", description="", compiled_code=body, meta={}, tags=[], config=FunctionConfig(), arguments=[],
        returns=FunctionReturns(data_type="int"),
    )  # fmt: skip


def bodies(of: Any, sql: str) -> dict[str, tuple[str, str | None]]:
    made = with_functions(graph(), of, MODEL, sql, lambda node: f"compiled {node.unique_id}")
    return {
        key: (f"{each['schema']}.{each['alias']}", each["compiled_code"]) for key, each in made["functions"].items()
    }


def test_the_functions_that_are_called_are_compiled_and_no_others() -> None:
    assert bodies(manifest(), "select dev.with_tax()") == {
        RATE: ("dev.rate", f"compiled {RATE}"),
        TAXED: ("dev.with_tax", f"compiled {TAXED}"),
        OTHER: ("dev.other", None),
    }


def test_dbt_s_own_graph_is_left_as_it_is() -> None:
    given = graph()
    with_functions(given, manifest(), MODEL, "select dev.with_tax()", lambda _node: "compiled")
    assert given == graph()


@pytest.mark.parametrize("call", ["prod.with_tax()", "`prod`.`with_tax`()"])
def test_a_function_of_another_target_has_the_body_that_it_has_there(call: str) -> None:
    assert bodies(manifest(deferred("1.2")), f"select {call}")[TAXED] == ("prod.with_tax", "1.2")


def test_a_function_of_another_target_without_a_body_is_the_catalog_s() -> None:
    assert TAXED not in bodies(manifest(deferred(None)), "select prod.with_tax()")


def test_a_function_that_could_be_deferred_and_is_not_is_the_project_s_own() -> None:
    assert bodies(manifest(deferred("1.2")), "select dev.with_tax()")[TAXED] == ("dev.with_tax", f"compiled {TAXED}")

"""The demo's models are broken on purpose, one thing at a time: their stream tests notice.

`make test-deep` tries one mutation of each kind and one at least of each model, `make mutations` all of them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from mutations import Mutation, mutations

from penstock.cli.output import Ui
from penstock.cli.session import Session
from penstock.cli.stream_tests import laboratory
from penstock.testing.cases import Case, read_all
from penstock.testing.lab import Lab

pytestmark = [pytest.mark.timeout(900), pytest.mark.deep]
ROOT = Path(__file__).parents[2]
ALL = bool(os.environ.get("PENSTOCK_ALL_MUTATIONS"))

# What no test can notice, because the rows are the same: model, a part of the mutation -> why.
EQUIVALENT = {
    ("clicks_clean", "COALESCE(clicks.user_id, '') -> clicks.user_id"): "null NOT IN (…) is null, and no row either",
    (
        "recommendations",
        "INNER JOIN popularity",
    ): "every second item of a pair is in popularity, which is made of pairs",
}


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with laboratory(Session(Ui(quiet=True), ROOT)) as found:
        yield found


def broken(lab: Lab, unique_id: str, mutation: Mutation) -> Lab:
    """The same project with one model broken."""
    manifest = lab.project.manifest
    node = {**lab.project.nodes[unique_id], "compiled_code": mutation.sql}
    return lab.with_manifest({**manifest, "nodes": {**lab.project.nodes, unique_id: node}})


def noticed(lab: Lab, cases: list[Case]) -> bool:
    return any(not lab.run(case).passed for case in cases)


def test_every_mutation_of_a_demo_model_makes_a_test_fail(lab: Lab) -> None:
    cases = read_all(ROOT)
    models = {uid: node for uid, node in lab.project.nodes.items() if node["resource_type"] == "model"}
    unnoticed, kinds, tried = [], set[str](), 0
    for unique_id, node in sorted(models.items()):
        name = node["name"]
        mine = sorted((case for case in cases if name in case.test.model), key=lambda case: len(case.test.model))
        assert mine, f"{name} has no stream test"
        first = tried
        for mutation in mutations(node["compiled_code"]):
            if any(model == name and part in mutation.what for model, part in EQUIVALENT):
                continue
            if mutation.operator in kinds and tried > first and not ALL:
                continue
            kinds.add(mutation.operator)
            tried += 1
            if not noticed(broken(lab, unique_id, mutation), mine):
                unnoticed.append(f"{name}: {mutation.name}")
    assert unnoticed == []
    assert len(kinds) >= 5, f"{tried} mutations, of these kinds: {kinds}"

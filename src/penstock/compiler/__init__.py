"""Models and sources of a dbt project become StreamSpecs, PySpark programs and plans. Pure: no Spark, no dbt."""

from penstock.compiler.build import (
    compile_model,
    compile_project,
    refuse_source,
    sources_of,
    write_target,
)
from penstock.compiler.inputs import compile_source
from penstock.compiler.job import render_job
from penstock.compiler.plan import Plan, Verdict, plan_change, source_changes
from penstock.compiler.quarantine import quarantine_of, quarantines
from penstock.compiler.source_table import compile_source_table, source_tables
from penstock.compiler.spec import StreamSpec

__all__ = [
    "Plan",
    "StreamSpec",
    "Verdict",
    "compile_model",
    "compile_project",
    "compile_source",
    "compile_source_table",
    "plan_change",
    "quarantine_of",
    "quarantines",
    "refuse_source",
    "render_job",
    "source_changes",
    "source_tables",
    "sources_of",
    "write_target",
]

"""Models and sources of a dbt project become StreamSpecs, PySpark programs and plans. Pure: no Spark, no dbt."""

from penstock.compiler.build import compile_model, compile_project, write_target
from penstock.compiler.job import render_job
from penstock.compiler.plan import Plan, Verdict, plan_change
from penstock.compiler.spec import StreamSpec

__all__ = [
    "Plan",
    "StreamSpec",
    "Verdict",
    "compile_model",
    "compile_project",
    "plan_change",
    "render_job",
    "write_target",
]

"""Rows that are otherwise than a model expects: counted, left out, or the end of the stream.

Rules
- Each row of a batch is judged once, in the query that computes it: a column of booleans, one for each expectation,
  comes with it and is taken off before the row is written.
- A row that is dropped has no place in the table. Where the table follows an aggregate, or the changes of another
  table, the row of its key goes; where the last message of a key wins, or the last row of a join of two streams, it is
  passed over.
- With `fail` nothing of the batch is written.
- A row that deletes is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType

from penstock.engine.changed_rows import GONE
from penstock.engine.failures import sentence
from penstock.errors import Location
from penstock.errors.catalogue import EXPECTATION_BROKEN, EXPECTATION_INVALID
from penstock.project.expectations import Expectation

HELD = "_penstock_held"


@dataclass(frozen=True)
class Judge:
    """The expectations of one stream."""

    stream: str
    expectations: tuple[Expectation, ...]
    deletes: bool  # a row that is dropped goes from the table, too

    @property
    def drops(self) -> bool:
        return any(each.on_violation == "drop" for each in self.expectations)

    def judged(self, rows: DataFrame) -> DataFrame:
        """The rows, each with what it holds."""
        return rows.withColumn(HELD, F.array(*[F.expr(_held(each)) for each in self.expectations]))

    def counted(self, judged: DataFrame) -> dict[str, int]:
        """How many rows do not hold each expectation."""
        counts = [F.expr(f"count_if(not {HELD}[{at}])").alias(str(at)) for at in range(len(self.expectations))]
        found = judged.agg(*counts).first()
        return {each.name: int(found[at]) for at, each in enumerate(self.expectations)} if found is not None else {}

    def taken(self, judged: pa.Table) -> tuple[pa.Table, dict[str, int]]:
        """The rows to be written, and how many did not hold each expectation; PEN-1346 when the stream must stop."""
        held = judged.column(HELD)
        rows = judged.drop_columns([HELD])
        broken = [pc.fill_null(pc.invert(pc.list_element(held, at)), False) for at in range(len(self.expectations))]
        counts = {each.name: int(pc.sum(broken[at]).as_py() or 0) for at, each in enumerate(self.expectations)}
        self._stop(counts)
        if not self.drops:
            return rows, counts
        dropped = pa.chunked_array([pa.array([False] * rows.num_rows, pa.bool_())])
        for at, each in enumerate(self.expectations):
            if each.on_violation == "drop":
                dropped = pc.or_(dropped, broken[at])
        if not self.deletes:
            return rows.filter(pc.invert(dropped)), counts
        if GONE in rows.column_names:
            dropped = pc.or_(dropped, rows.column(GONE))
            rows = rows.drop_columns([GONE])
        return rows.append_column(GONE, dropped), counts

    def taken_by_spark(self, judged: DataFrame) -> tuple[DataFrame, dict[str, int]]:
        """As `taken`, of rows that stay in Spark; they are computed twice unless the caller keeps them."""
        counts = self.counted(judged)
        self._stop(counts)
        drops = [at for at, each in enumerate(self.expectations) if each.on_violation == "drop"]
        if not drops:
            return judged.drop(HELD), counts
        dropped = " or ".join(f"coalesce(not {HELD}[{at}], false)" for at in drops)
        if not self.deletes:
            return judged.where(f"not ({dropped})").drop(HELD), counts
        gone = f"{GONE} or {dropped}" if GONE in judged.columns else dropped
        return judged.withColumn(GONE, F.expr(gone)).drop(HELD), counts

    def _stop(self, counts: Mapping[str, int]) -> None:
        for each in self.expectations:
            if each.on_violation == "fail" and counts[each.name]:
                rows = counts[each.name]
                raise EXPECTATION_BROKEN.error(
                    f"{self.stream}: {rows} {'row does' if rows == 1 else 'rows do'} not hold {shown(each)}."
                )


def shown(expectation: Expectation) -> str:
    """`positive (v > 0)`, or the condition alone where it is the name."""
    same = expectation.name == expectation.expect
    return expectation.expect if same else f"{expectation.name} ({expectation.expect})"


def _held(expectation: Expectation) -> str:
    return f"coalesce(({expectation.expect}), false)"


def check(rows: DataFrame, expectations: tuple[Expectation, ...], at: Location) -> None:
    """Have Spark read the conditions over the table's columns; PEN-1345 when it cannot, or one is no condition."""
    for each in expectations:
        try:
            found: StructType = rows.select(F.expr(each.expect).alias("held")).schema
        except Exception as problem:
            raise EXPECTATION_INVALID.error(f"expectation {shown(each)}: {sentence(problem)}", at=at) from problem
        if not isinstance(found["held"].dataType, BooleanType):
            kind = found["held"].dataType.simpleString()
            raise EXPECTATION_INVALID.error(f"expectation {shown(each)} is {kind}, not true or false.", at=at)

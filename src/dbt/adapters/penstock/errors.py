"""Failures as dbt shows them: the catalogue's line and Spark's sentence, no stack of macros, no stack of the JVM."""

from __future__ import annotations

import re

from dbt_common.exceptions import DbtDatabaseError, DbtRuntimeError

from penstock.errors import PenstockError


class StreamError(DbtRuntimeError):  # type: ignore[misc]
    """An error of the catalogue; its text is the error's own line."""

    def __init__(self, error: PenstockError) -> None:
        super().__init__(str(error))
        self.error = error

    def process_stack(self) -> list[str]:
        return []  # which macros called each other does not help the author of a model


class QueryError(DbtDatabaseError):  # type: ignore[misc]
    """A statement that Spark rejected or could not finish."""

    def process_stack(self) -> list[str]:
        return []


_TAIL = re.compile(r"\n+JVM stacktrace:.*", re.DOTALL)
_PLAN = re.compile(r"(line \d+ pos \d+)(?:;\n|\n+['+]).*", re.DOTALL)


def spark_sentence(text: str) -> str:
    """What Spark says is wrong; the JVM's stack and the logical plan are left out, the marked SQL line stays."""
    return _PLAN.sub(r"\1", _TAIL.sub("", text)).strip()

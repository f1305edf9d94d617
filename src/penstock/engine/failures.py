"""What Spark and Delta throw, as errors of the catalogue.

Rules
- A line that Spark names is a line of the job's SQL; the user is told the line of the model.
- Names of the job's views are turned back into the names that the model's author wrote.
- Java's stack stays in the log.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from penstock.compiler.quality import RAISED
from penstock.compiler.spec import StreamSpec
from penstock.engine.causes import cause
from penstock.errors import Location, PenstockError
from penstock.errors.catalogue import (
    BAD_RECORD,
    CONSTRAINT_BROKEN,
    EXPECTATION_BROKEN,
    MODEL_ANALYSIS,
    MODEL_NOT_INCREMENTAL,
    MODEL_SYNTAX,
    STREAM_FAILED,
)

_LINE = re.compile(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?")
_STATE = re.compile(r"\s*SQLSTATE: \w+;?")
_CLASS = re.compile(r"^\[([A-Z_0-9.]+)\]\s*")
_JAVA = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)):\s*", re.MULTILINE)
_RAISES = re.compile(r"\b(?:raise_error|assert_true)\s*\(", re.IGNORECASE)
_CAUSED = re.compile(r"^Caused by: .+$", re.MULTILINE)


def of_model(problem: BaseException, spec: StreamSpec) -> PenstockError:
    """Why a model cannot be analysed."""
    if isinstance(problem, PenstockError):
        return problem
    text = _text(problem)
    kind = MODEL_ANALYSIS
    if isinstance(problem, ParseException):
        kind = MODEL_SYNTAX
    elif re.search(r"STREAMING|not supported (?:in|with|on) streaming|streaming DataFrame", text):
        kind = MODEL_NOT_INCREMENTAL
    elif not isinstance(problem, AnalysisException):
        return of_stream(text, spec)
    return kind.error(_sentence(text, spec), at=Location(spec.path, _model_line(text, spec)))


def of_stream(problem: BaseException | str, spec: StreamSpec) -> PenstockError:
    """Why a running stream failed."""
    if isinstance(problem, PenstockError):
        if problem.kind is EXPECTATION_BROKEN:
            return replace(problem, at=Location(spec.path, _first_line(spec)))
        return problem
    text = problem if isinstance(problem, str) else _with_causes(problem)
    if (bad := _bad_record(text, spec)) is not None:
        return bad
    found = cause(text)
    if found is not None:
        kind, message = found
        at = Location(spec.path, _first_line(spec)) if kind is CONSTRAINT_BROKEN else None
        return kind.error(f"{spec.name}: {message}", at=at)
    at = Location(spec.path, _failing_line(text, spec))
    return STREAM_FAILED.error(f"{spec.name}: {_sentence(_cause(text), spec)}", at=at)


def _bad_record(text: str, spec: StreamSpec) -> PenstockError | None:
    """The record that ended a stream with on_bad_record: fail, as `penstock.compiler.quality` tells it."""
    at = text.find(f"{RAISED} {{")
    if at < 0:
        return None
    found, _ = json.JSONDecoder().raw_decode(text[at + len(RAISED) + 1 :])
    problem = found.get("problem") or {}
    column = f", column '{problem['column']}'" if problem.get("column") else ""
    place = f"topic '{found['topic']}', partition {found['partition']}, offset {found['offset']}{column}"
    return BAD_RECORD.error(f"{spec.name}: {place}: {problem.get('error')}.", at=Location(spec.path))


def sentence(problem: BaseException) -> str:
    """What Spark says is wrong, in one sentence."""
    message = _tidy(_text(problem))
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _text(problem: BaseException) -> str:
    if isinstance(problem, Py4JJavaError):
        return str(problem.java_exception.toString())
    if isinstance(problem, PySparkException):
        return str(problem)
    return f"{type(problem).__name__}: {problem}"


def _with_causes(problem: BaseException) -> str:
    """The message and those of its causes: that a batch failed is often all that the outermost says."""
    stack = str(problem) if isinstance(problem, Py4JJavaError) else str(getattr(problem, "_stackTrace", "") or "")
    return "\n".join([_text(problem), *_CAUSED.findall(stack)])


def _cause(text: str) -> str:
    """The innermost cause in a Java or Python trace."""
    found = _CAUSED.findall(text)
    if found:
        return str(found[-1]).removeprefix("Caused by: ")
    if _JAVA.match(text):
        return text
    python = re.findall(r"^(?:\w+\.)*(\w+(?:Error|Exception): .+)$", text, re.MULTILINE)
    return str(python[-1]) if python else text


def _sentence(text: str, spec: StreamSpec) -> str:
    message = _tidy(text)
    for each in spec.inputs:
        if each.kind != "table":
            message = message.replace(each.view, each.relation)
    for function in spec.functions:
        message = message.replace(function.called, function.name)
    return message if message.endswith((".", "?", "!")) else f"{message}."


def _tidy(text: str) -> str:
    message = re.split(r"\n\s*\n|\n== SQL|;\s*['+~!]|\n['+]|\nJVM stacktrace|\n\tat ", text.strip(), maxsplit=1)[0]
    message = _JAVA.sub("", _CLASS.sub("", _JAVA.sub("", message)))
    message = _LINE.sub("", _STATE.sub("", message))
    return re.sub(r"\s+", " ", message).strip().rstrip(";:, ")[:600]


def _model_line(text: str, spec: StreamSpec) -> int | None:
    found = _LINE.search(text)
    if not found:
        return None
    # The job's SQL begins with a line end that the spec's does not have.
    line = max(int(found.group(1)) - 1, 1)
    return spec.line_map[min(line, len(spec.line_map)) - 1] if spec.line_map else line


def _failing_line(text: str, spec: StreamSpec) -> int | None:
    """The line of the model that failed while it ran: the one that Spark names, the only one that raises errors, or
    where the query begins."""
    if (named := _model_line(text, spec)) is not None:
        return named
    raising = [number for number, line in enumerate(spec.sql.splitlines()) if _RAISES.search(line)]
    if len(raising) == 1 and raising[0] < len(spec.line_map):
        return spec.line_map[raising[0]]
    return _first_line(spec)


def _first_line(spec: StreamSpec) -> int | None:
    return spec.line_map[0] if spec.line_map else None

"""What Spark and Delta throw, as errors of the catalogue.

Rules
- A line that Spark names is a line of the job's SQL; the user is told the line of the model.
- Names of the job's views are turned back into the names that the model's author wrote.
- Java's stack stays in the log.
"""

from __future__ import annotations

import re

from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException, ParseException, PySparkException

from penstock.compiler.spec import StreamSpec
from penstock.errors import Kind, Location, PenstockError
from penstock.errors.catalogue import (
    AUTH_REFUSED,
    BROKER_UNREACHABLE,
    DISK_FULL,
    INPUT_REBUILT,
    MODEL_ANALYSIS,
    MODEL_NOT_INCREMENTAL,
    MODEL_SYNTAX,
    OFFSETS_LOST,
    STREAM_FAILED,
    TOPIC_MISSING,
)

_LINE = re.compile(r"\(?line (\d+),? pos(?:ition)? (\d+)\)?")
_STATE = re.compile(r"\s*SQLSTATE: \w+;?")
_CLASS = re.compile(r"^\[([A-Z_0-9.]+)\]\s*")
_JAVA = re.compile(r"^(?:[a-z]\w*\.)+([A-Z]\w*(?:Exception|Error)):\s*", re.MULTILINE)
_CAUSED = re.compile(r"^Caused by: .+$", re.MULTILINE)

# The first pattern that is found in the text decides.
_KNOWN: tuple[tuple[str, Kind, str], ...] = (
    (r"No space left on device|Disk quota exceeded|StorageFull", DISK_FULL, "there is no room left on the disk."),
    (r"UnknownTopicOrPartition|This server does not host this topic", TOPIC_MISSING, "its topic is gone."),
    (
        r"KAFKA_DATA_LOSS|Cannot fetch offset|OffsetOutOfRange|offset was changed from",
        OFFSETS_LOST,
        "messages that were not read yet are gone from the topic.",
    ),
    (
        r"SaslAuthenticationException|SslAuthenticationException|SSLHandshakeException|Invalid PEM|Failed to load PEM",
        AUTH_REFUSED,
        "the broker and the credentials do not fit.",
    ),
    (
        r"TimeoutException.*(?:metadata|node assignment|listOffsets|describeTopics)|No resolvable bootstrap|Failed to (?:create new KafkaAdminClient|construct kafka)",  # noqa: E501
        BROKER_UNREACHABLE,
        "the broker does not answer.",
    ),
    (r"DIFFERENT_DELTA_TABLE_READ_BY_STREAMING_SOURCE", INPUT_REBUILT, "the table it reads was made anew."),
)


def of_model(problem: BaseException, spec: StreamSpec) -> PenstockError:
    """Why a model cannot be analysed."""
    if isinstance(problem, PenstockError):
        return problem
    text = _text(problem)
    kind = MODEL_ANALYSIS
    if isinstance(problem, ParseException):
        kind = MODEL_SYNTAX
    elif re.search(r"STREAMING|not supported (?:in|with|on) streaming|streaming DataFrames", text):
        kind = MODEL_NOT_INCREMENTAL
    elif not isinstance(problem, AnalysisException):
        return of_stream(text, spec)
    return kind.error(_sentence(text, spec), at=Location(spec.path, _model_line(text, spec)))


def of_stream(problem: BaseException | str, spec: StreamSpec) -> PenstockError:
    """Why a running stream failed."""
    if isinstance(problem, PenstockError):
        return problem
    text = problem if isinstance(problem, str) else _with_causes(problem)
    for pattern, kind, message in _KNOWN:
        if re.search(pattern, text, re.DOTALL):
            return kind.error(f"{spec.name}: {message}")
    return STREAM_FAILED.error(f"{spec.name}: {_sentence(_cause(text), spec)}", at=Location(spec.path))


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

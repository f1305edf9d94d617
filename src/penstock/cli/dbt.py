"""dbt, called with the user's own arguments.

Rules
- Arguments reach dbt as they were typed. Only what the user left out is added: --project-dir when the project is
  above the current directory, --profiles-dir when the project brings its own profiles.yml.
- dbt runs as a process of its own with this interpreter; its exit code is kept.
- Ctrl-C reaches dbt, which ends its own way; Penstock waits for it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from penstock.cli.session import find_profiles, find_project
from penstock.errors import PenstockError

COMMANDS: dict[str, str] = {
    "build": "Run seeds, models, snapshots and tests in the order of the graph.",
    "clean": "Delete dbt's generated directories.",
    "clone": "Clone relations from another state.",
    "debug": "Check dbt's connection to the engine.",
    "deps": "Install dbt packages.",
    "docs": "Generate or serve dbt's documentation.",
    "ls": "List the project's resources: dbt list.",
    "parse": "Parse the project.",
    "retry": "Run again what failed in the last run.",
    "run-operation": "Call a macro.",
    "seed": "Load the CSV files.",
    "show": "Show the first rows of a model or query.",
    "snapshot": "Take snapshots.",
    "source": "Check how fresh the sources are.",
}
STDERR = 2  # the descriptor: dbt's messages must not mix with a result in JSON
_ENTRY = "from dbt.cli.main import cli; cli(prog_name='dbt')"


def option(args: Sequence[str], name: str) -> str | None:
    """The value of `--name value` or `--name=value` among arguments that are dbt's."""
    for position, arg in enumerate(args):
        if arg == name and position + 1 < len(args):
            return args[position + 1]
        if arg.startswith(f"{name}="):
            return arg.partition("=")[2]
    return None


def complete(args: Sequence[str]) -> list[str]:
    """The arguments with the directories that the user left out."""
    given = option(args, "--project-dir")
    try:
        project = find_project(Path(given) if given else None)
    except PenstockError:
        return list(args)  # dbt says it in its own way; some of its commands need no project
    extra: list[str] = []
    if given is None and "DBT_PROJECT_DIR" not in os.environ and project != Path.cwd():
        extra += ["--project-dir", str(project)]
    if option(args, "--profiles-dir") is None and (profiles := find_profiles(project, None)):
        extra += ["--profiles-dir", str(profiles)]
    return _insert(list(args), extra)


def _insert(args: list[str], extra: list[str]) -> list[str]:
    """Options go to the end, but before a `--` that ends options."""
    if "--" in args:
        end = args.index("--")
        return [*args[:end], *extra, *args[end:]]
    return [*args, *extra]


def command_line(args: Sequence[str]) -> list[str]:
    """dbt of this interpreter's environment, whatever is on PATH."""
    script = Path(sys.executable).with_name("dbt")
    return [str(script), *args] if script.is_file() else [sys.executable, "-c", _ENTRY, *args]


def replace_process(args: Sequence[str]) -> None:
    """Become dbt: nothing of Penstock is left to do."""
    sys.stdout.flush()
    line = command_line(complete(args))
    os.execv(line[0], line)


def run(args: Sequence[str], *, stdout: int | None = None, stderr: int | None = None) -> tuple[int, str]:
    """Run dbt and wait; its exit code, and what it printed when `stdout` is a pipe."""
    with subprocess.Popen(command_line(complete(args)), stdout=stdout, stderr=stderr, text=True) as process:
        try:
            printed, _ = process.communicate()
        except KeyboardInterrupt:
            # The terminal sent the same signal to dbt, which cancels its queries: give it the time.
            _end(process)
            raise
    return process.returncode, printed or ""


def _end(process: subprocess.Popen[str]) -> None:
    for ask in (process.terminate, process.kill):
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            ask()


def target_dir(project: Path, args: Sequence[str] = ()) -> Path:
    """Where dbt writes its artefacts."""
    named = option(args, "--target-path") or os.environ.get("DBT_TARGET_PATH")
    if named is None:
        import yaml

        content = yaml.safe_load((project / "dbt_project.yml").read_text(encoding="utf-8"))
        named = content.get("target-path") if isinstance(content, dict) else None
    return project / (named if isinstance(named, str) and "{" not in named else "target")

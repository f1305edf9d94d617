"""What a project was: at a commit, or when a state directory was kept. Needs no engine and no broker.

Rules
- A commit is unpacked beside, never checked out: the work tree and the index stay as they are.
- It is compiled with the profile and the variables of now, so that the names of the streams are those of the target
  that is asked about.
- A state directory is what dbt calls one: a kept target/, with manifest.json. The specs below its penstock/ are taken
  as they are; without them, the SQL that the manifest has is compiled.
"""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.compile import compile_all, variable_words
from penstock.cli.manifest import make_manifest
from penstock.cli.session import Session
from penstock.errors import PenstockError
from penstock.errors.catalogue import AGAINST_BROKEN, AGAINST_UNKNOWN

if TYPE_CHECKING:
    from penstock.compiler.spec import StreamSpec
    from penstock.control.planning import Deployed

_OFFLINE = ("--no-introspect", "--no-populate-cache")


def streams_before(session: Session, against: str, variables: str | None = None) -> dict[str, Deployed]:
    """The streams of the project as it was, as if they were deployed."""
    from penstock.control.planning import Deployed

    folder = Path(against).expanduser()
    specs = _of_state(session, folder) if folder.is_dir() else _of_commit(session, against, variables)
    return {spec.name: Deployed(spec.name, 0, spec) for spec in specs}


# -- a state directory ------------------------------------------------------------------------------------------------
def _of_state(session: Session, folder: Path) -> list[StreamSpec]:
    file = folder / "manifest.json"
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise AGAINST_UNKNOWN.error(f"There is no manifest.json in {folder}.") from None
    except json.JSONDecodeError:
        raise AGAINST_UNKNOWN.error(f"{file} is not JSON.") from None
    kept = _kept_specs(folder, manifest)
    return kept if kept is not None else _compiled(session, manifest, session.project, str(folder))


def _kept_specs(folder: Path, manifest: dict[str, Any]) -> list[StreamSpec] | None:
    """The specs of the manifest's streams and their quarantines; None when one is missing or of another version."""
    from pydantic import ValidationError

    from penstock.cli.plan import project_tables
    from penstock.compiler import StreamSpec, quarantines
    from penstock.paths import safe_name

    found: list[StreamSpec] = []
    for relation in project_tables(manifest).values():
        try:
            text = (folder / "penstock" / safe_name(relation) / "spec.json").read_text(encoding="utf-8")
            found.append(StreamSpec.from_json(text))
        except (FileNotFoundError, ValidationError):
            return None
    kept = {each.name: each for spec in found for each in quarantines(spec)}
    return [*found, *kept.values()]


# -- a commit ---------------------------------------------------------------------------------------------------------
def _of_commit(session: Session, name: str, variables: str | None) -> list[StreamSpec]:
    with unpacked(session.project, name) as project:
        then = Session(session.ui, project, session.profiles or session.profiles_dir, session.target)
        try:
            words = ["compile", *_OFFLINE, "--target-path", str(project / "target"), *variable_words(variables)]
            manifest = make_manifest(then, words)
        except PenstockError:
            raise AGAINST_BROKEN.error(f"The project at '{name}' cannot be compiled by dbt.") from None
        return _compiled(session, manifest, project, name)


def _compiled(session: Session, manifest: dict[str, Any], project: Path, name: str) -> list[StreamSpec]:
    specs, problems = compile_all(manifest, project)
    for problem in problems:
        session.ui.note(f"At '{name}' this did not compile and is taken as not there: {problem}")
    return specs


@contextmanager
def unpacked(project: Path, commit: str) -> Iterator[Path]:
    """The project's directory in a copy of its repository at a commit; gone afterwards."""
    top = _git(project, "rev-parse", "--show-toplevel")
    sha = _git(project, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}") if top else None
    if not top or not sha:
        where = "the project's repository" if top else "a git repository (the project is in none)"
        raise AGAINST_UNKNOWN.error(f"'{commit}' is neither a directory nor a commit of {where}.")
    root = Path(top.decode().strip())
    with tempfile.TemporaryDirectory(prefix="penstock-plan-") as folder:
        archive = _git(root, "archive", "--format=tar", sha.decode().strip())
        with tarfile.open(fileobj=io.BytesIO(archive or b"")) as files:
            files.extractall(folder, filter="data")
        then = Path(folder).resolve() / project.resolve().relative_to(root.resolve())
        if not (then / "dbt_project.yml").is_file():
            raise AGAINST_UNKNOWN.error(f"At '{commit}' there is no dbt_project.yml in {project.name}.")
        packages = project / "dbt_packages"  # they are installed, not committed
        if packages.is_dir() and not (then / "dbt_packages").exists():
            (then / "dbt_packages").symlink_to(packages.resolve())
        yield then


def _git(where: Path, *args: str) -> bytes | None:
    try:
        done = subprocess.run(["git", "-C", str(where), *args], capture_output=True, check=False)
    except FileNotFoundError:
        raise AGAINST_UNKNOWN.error("git is not installed.") from None
    return done.stdout if done.returncode == 0 else None

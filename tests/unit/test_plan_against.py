"""`penstock plan --against`: what a change does to running streams, known from two versions of a project alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import commands
import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner, Result

from penstock.cli import init
from penstock.cli.main import app

REPOSITORY = Path(__file__).parents[2]
WORKFLOW = ".github/workflows/ci.yml"
GOLDEN = Path(__file__).parent / "fixtures" / "plan_against.md"


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The template's project below the top of a git repository, committed and tagged."""
    commands.use(commands.directory(), monkeypatch.setattr)
    for name in [name for name in os.environ if name.startswith(("DBT_", "PENSTOCK_"))]:
        monkeypatch.delenv(name)
    project = tmp_path / "repository" / "shop"
    init.create(project, "shop")
    (project / "models" / "gone.sql").write_text("select event_id, item_id from {{ ref('clicks_clean') }}\n")
    git(project.parent, "init", "-q")
    git(project.parent, "add", ".")
    git(project.parent, "commit", "-qm", "The shop")
    git(project.parent, "tag", "deployed")
    monkeypatch.chdir(project)
    return project


def git(where: Path, *args: str) -> str:
    person = ("-c", "user.name=shop", "-c", "user.email=shop@example.com")
    done = subprocess.run(["git", *person, *args], cwd=where, capture_output=True, text=True, check=True)
    return done.stdout


def plan(*args: str, code: int = 0) -> Result:
    done = CliRunner().invoke(app, ["plan", "--quiet", *args])
    assert done.exit_code == code, done.output + done.stderr
    return done


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_the_plan_of_a_change_is_the_same_from_a_commit_and_from_kept_artefacts(shop: Path, tmp_path: Path) -> None:
    assert CliRunner().invoke(app, ["compile", "--quiet"]).exit_code == 0
    state = tmp_path / "state"
    shutil.copytree(shop / "target", state)
    models = shop / "models"
    edit(models / "clicks_clean.sql", "clicked_at is not null", "clicked_at is not null and event_type <> 'bot'")
    edit(models / "views_per_item.sql", "count(*) as views", "count(distinct event_id) as views")
    (models / "buyers.sql").write_text(
        "select user_id, count(*) as purchases from {{ ref('clicks_clean') }}\n"
        "where event_type = 'purchase' group by user_id\n"
    )
    (models / "gone.sql").unlink()
    before = git(shop, "status", "--porcelain")

    found = plan("--against", "deployed", "--output", "markdown").stdout
    assert found == GOLDEN.read_text()
    assert plan("--against", str(state), "--output", "markdown").stdout == found.replace("deployed", str(state))
    shutil.rmtree(state / "penstock")  # an older state directory: the manifest's SQL is compiled
    assert plan("--against", str(state), "--output", "markdown").stdout == found.replace("deployed", str(state))
    assert git(shop, "status", "--porcelain") == before, "the work tree stays as it is"
    assert not (shop / ".penstock").exists(), "nothing was started"


def test_a_plan_takes_the_variables_and_the_selection_of_the_run(shop: Path, tmp_path: Path) -> None:
    edit(shop / "models" / "gone.sql", "select event_id, item_id", "select {{ var('columns', 'event_id') }}")
    git(shop, "commit", "-qam", "With a variable")
    (shop / "selectors.yml").write_text("selectors: [{name: few, definition: gone}]\n")
    assert CliRunner().invoke(app, ["compile", "--quiet", "--vars", "columns: item_id"]).exit_code == 0
    state = tmp_path / "state"
    shutil.copytree(shop / "target", state)

    def verdicts(*args: str, against: str = str(state)) -> dict[str, str]:
        found = json.loads(plan("--against", against, "--output", "json", *args).stdout)
        return {each["stream"].rpartition(".")[2]: each["verdict"] for each in found["streams"]}

    assert verdicts("--selector", "few") == {"gone": "RESTART"}
    edit(shop / "models" / "clicks_clean.sql", "clicked_at is not null", "clicked_at is not null and 1 = 1")
    words = ("--select", "state:modified", "--state", str(state), "--vars", "columns: item_id")
    assert verdicts(*words) == {"clicks_clean": "RESTART"}
    assert verdicts("--vars", "columns: item_id", against="HEAD")["gone"] == "NO-OP"


def test_the_functions_of_selected_models_are_compiled_with_them(shop: Path, tmp_path: Path) -> None:
    (shop / "functions").mkdir()
    declared = "arguments: [{name: price, data_type: double}], returns: {data_type: double}"
    names = ("times", "less")
    for name in names:
        (shop / "functions" / f"{name}.sql").write_text("price * {{ var('times', 2) }}\n")
    (shop / "functions" / "functions.yml").write_text(
        f"functions: [{', '.join(f'{{name: {name}, {declared}}}' for name in names)}]\n"
    )
    edit(shop / "models" / "gone.sql", "event_id, item_id", "{{ function('times') }}(1.0) as twice")
    (shop / "models" / "more.sql").write_text(
        "select {{ function('less') }}(1.0) as less from {{ ref('clicks_clean') }}\n"
    )
    (shop / "selectors.yml").write_text("selectors: [{name: few, definition: gone}]\n")
    assert CliRunner().invoke(app, ["compile", "--quiet", "--vars", "times: 3"]).exit_code == 0
    state = tmp_path / "state"
    shutil.copytree(shop / "target", state)
    one_of_two = ("--select", "+gone", "--select", "more")
    for words in (("--select", "gone"), ("--exclude", "times"), ("--selector", "few"), one_of_two):
        found = json.loads(plan("--against", str(state), "--output", "json", "--vars", "times: 3", *words).stdout)
        assert {each["stream"].rpartition(".")[2]: each["verdict"] for each in found["streams"]}["gone"] == "NO-OP"


def test_there_must_be_something_to_compare_with(shop: Path, tmp_path: Path) -> None:
    unknown = plan("--against", "no-such-branch", code=2)
    assert "PEN-5030 'no-such-branch' is neither a directory nor a commit" in " ".join(unknown.stderr.split())
    (tmp_path / "empty").mkdir()
    assert "PEN-5030" in plan("--against", str(tmp_path / "empty"), code=2).stderr
    (shop / "models" / "gone.sql").write_text("select {{ nonsense( }}")
    git(shop, "commit", "-qam", "Broken")
    (shop / "models" / "gone.sql").unlink()
    assert "PEN-5031" in plan("--against", "HEAD", code=2).stderr


# -- the workflow -----------------------------------------------------------------------------------------------------
def test_the_workflow_of_the_docs_is_the_template_s() -> None:
    shown = re.search(r"```yaml\n(.*?)```", (REPOSITORY / "docs" / "ci.md").read_text(), re.DOTALL)
    assert shown is not None
    assert shown.group(1) == init.template_files()[WORKFLOW]


def test_every_command_of_the_workflow_exists() -> None:
    workflow = yaml.safe_load(init.template_files()[WORKFLOW])
    assert workflow["permissions"]["pull-requests"] == "write"
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    lines = [line for step in steps for line in str(step.get("run", "")).splitlines()]
    called = [found.split() for line in lines for found in re.findall(r"penstock ([a-z]+(?: --?[a-z-]+)*)", line)]
    names = {"compile", "test", "plan", "up", "generate", "status", "query", "logs", "down"}
    assert {words[0] for words in called} == names
    assert {word for line in lines for word in re.findall(r"\bdbt ([a-z]+)", line)} == {"parse", "test", "build"}
    commands = get_command(app).commands  # type: ignore[attr-defined]
    for name, *options in called:
        assert name in commands
        own = {option for parameter in commands[name].params for option in parameter.opts}
        assert set(options) <= own, (name, options)

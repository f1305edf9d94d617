"""The wheel, built once and installed into a clean environment, outside the checkout.

The environment has nothing but the wheel; the packages it depends on are borrowed from the environment of this run.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the commands `penstock`, `dbt` and `python` of that environment."""
    home = tmp_path_factory.mktemp("wheel")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(home / "dist"), str(ROOT))
    (built,) = (home / "dist").glob("penstock-*.whl")
    _run(sys.executable, "-m", "venv", str(home / "venv"))
    commands = home / "venv" / "bin"
    python = str(commands / "python")
    _run(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", str(built))
    site = Path(_run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    borrowed = [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    # Plain paths: the .pth files of the other environment, among them the checkout's own, are not followed.
    (site / "borrowed.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(borrowed)))
    (commands / "dbt").write_text(f"#!{python}\nimport sys\nfrom dbt.cli.main import cli\nsys.exit(cli())\n")
    (commands / "dbt").chmod(0o755)
    return commands


def _run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False, cwd="/")
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

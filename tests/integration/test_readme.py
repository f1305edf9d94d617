"""What the README shows works: its source and model are compiled, its commands exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from commands import warm

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippets(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_source_and_the_model_compile_into_a_stream(tmp_path: Path) -> None:
    source, model = snippets("yaml")[0], snippets("sql")[0]
    for text in (source, model):
        name = re.search(r"^(?:#|--) (\S+)$", text, re.MULTILINE)
        assert name, "a snippet names its file"
        file = tmp_path / name.group(1)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (tmp_path / "dbt_project.yml").write_text(
        "name: readme\nversion: 1.0.0\nprofile: penstock\nmodel-paths: [models, sources]\n", encoding="utf-8"
    )
    shutil.copytree(ROOT / "profiles", tmp_path / "profiles")
    done = subprocess.run(
        [warm("penstock"), "compile", "--output", "json"], cwd=tmp_path, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stdout + done.stderr
    spec = json.loads((tmp_path / "target/penstock/shop.item_views_per_minute/spec.json").read_text())
    assert spec["output"]["mode"] == "upsert"
    assert spec["output"]["keys"] == ["item_id", "minute_start"]
    assert not (tmp_path / ".penstock").exists(), "compiling starts nothing"


def test_every_command_and_target_that_is_named_exists() -> None:
    listed = subprocess.run([warm("penstock"), "--help"], capture_output=True, text=True, timeout=60).stdout
    words = set(re.findall(r"`penstock ([a-z][a-z-]*)", README)) | set(
        re.findall(r"^\$ penstock ([a-z-]+)", README, re.M)
    )
    assert {"up", "status", "query"} <= words
    assert not {word for word in words if not re.search(rf"\b{word}\b", listed)}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`make ([a-z]+)", README)) | set(re.findall(r"^\$ make ([a-z]+)", README, re.MULTILINE))
    assert {"demo", "test"} <= targets
    assert not {target for target in targets if f"\n{target}:" not in makefile}


def test_every_file_that_is_linked_is_there() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", README)
    assert links
    assert not [link for link in links if not (ROOT / link).exists()]

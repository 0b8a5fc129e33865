"""The documentation is one site without broken links, and what the README names is there."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from . import forked

ROOT = Path(__file__).resolve().parents[1]


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "reference" / "index.html").is_file()


def test_every_page_is_in_the_navigation() -> None:
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    assert {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")} == listed


def test_links_of_the_pages_beside_the_site_lead_somewhere() -> None:
    for page in ROOT.glob("*.md"):
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (ROOT / target).exists(), f"{page.name} links to {target}"


def test_files_that_the_pages_name_are_there() -> None:
    """Of the repository, or of the package without its own name before it."""
    invented = {"methods/yours.py"}
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        if page.name == "CHANGELOG.md":  # files have had other names
            continue
        for name in set(re.findall(r"`((?:\w+/)+\w+\.(?:py|cpp|hpp|json))`", page.read_text())) - invented:
            places = (ROOT / name, ROOT / "src" / name, ROOT / "src/coterie" / name)
            assert any(place.is_file() for place in places), f"{page.name} names {name}"


def test_the_table_of_where_to_look_leads_there() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| .* \| `([\w/]+\.py)` \| `(\w+)` \|$", page, re.MULTILINE)
    assert len(rows) > 25
    for file, name in rows:
        tree = ast.parse((ROOT / "src/coterie" / file).read_text())
        defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.ClassDef, ast.FunctionDef))}
        for node in tree.body:
            if isinstance(node, (ast.Assign, ast.AnnAssign)):
                defined |= {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        assert name in defined, f"{name} is not in {file}"


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_programs_of_the_first_pages_run_as_they_are(page: str, tmp_path: Path) -> None:
    """In a fresh process, for what another test has imported hides a name that is not there."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert any("coterie.run(" in program for program in programs)
    for program in programs:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        done = forked.run([sys.executable, "-c", program], cwd=tmp_path, env=environment, fresh=True)
        assert done.returncode == 0, done.stderr[-3000:]

"""The folders of the four papers: the algorithm on a few screens, and what is ours apart from what is the paper's."""

from __future__ import annotations

import ast
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import coterie.methods
from coterie.methods import METHODS

FOLDER = Path(coterie.methods.__file__).parent
PAPERS = {"md-icfl": "md_icfl", "embedding": "embedding", "fedcg": "fedcg", "panm": "panm"}
OURS = {
    "md_icfl": {"seeding", "looks", "second_look", "newcomers"},
    "embedding": {"drift", "copies", "clustering/split_half", "clustering/mixture", "clustering/sampler"},
    "fedcg": {"features", "domains", "equipartition", "asked", "classes", "class_finder", "growing", "weight"},
    "panm": {"ours", "looks", "additions"},
}


@pytest.mark.parametrize("folder", PAPERS.values())
def test_the_algorithm_has_less_than_200_lines(folder: str) -> None:
    assert len((FOLDER / folder / "method.py").read_text().splitlines()) < 200


@pytest.mark.parametrize("folder", PAPERS.values())
def test_a_file_that_is_ours_says_so_first_and_no_other_does(folder: str) -> None:
    said = set()
    for path in (FOLDER / folder).rglob("*.py"):
        first = ast.get_docstring(ast.parse(path.read_text())) or ""
        if first.startswith("Ours"):
            said.add(str(path.relative_to(FOLDER / folder).with_suffix("")))
    assert said == OURS[folder]


@pytest.mark.parametrize(("name", "folder"), PAPERS.items())
def test_settings_are_the_papers_or_ours(name: str, folder: str) -> None:
    """`method.py` adds none of its own, so that `settings.py` has them all, in two classes."""
    kind: Any = METHODS[name]
    title = kind.__name__
    ours, paper = (
        next(c for c in kind.__mro__ if c.__name__ == each) for each in (f"{title}Settings", f"{title}PaperSettings")
    )
    assert issubclass(ours, paper)
    assert ours.__module__ == paper.__module__ == f"coterie.methods.{folder}.settings"
    assert {f.name for f in fields(kind)} == {f.name for f in fields(ours)}
    assert {f.name for f in fields(paper)} < {f.name for f in fields(ours)}

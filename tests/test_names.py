"""One name, one thing: a class name is defined once in the package."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import coterie

PACKAGE = Path(coterie.__file__).parent


def test_no_class_name_is_defined_twice() -> None:
    """A reader who finds `Question` in a message or a stack trace need not ask which of three it is."""
    places = defaultdict[str, list[str]](list)
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(f"{path.relative_to(PACKAGE)}:{node.lineno}")
    assert len(places) > 300, "the package was not found"
    assert {name: where for name, where in places.items() if len(where) > 1} == {}

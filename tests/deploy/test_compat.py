"""The contract with Flower: every internal of its that we use is there, and is named in one place."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import coterie
from coterie.core.errors import CoterieError
from coterie.deploy.flower import compat
from coterie.deploy.flower.compat import INTERNALS, PRIVATE, HttpGrid, TaskIdentity, load

SOURCES = Path(coterie.__file__).parent
PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}


def internals_of(file: Path) -> set[tuple[str, str]]:
    """Module and name of all imports of Flower's internals in a file."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {(alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "flwr"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "flwr":
            found |= {(str(node.module), alias.name) for alias in node.names if node.module not in PUBLIC}
    return found


def missing() -> list[str]:
    """What this Flower lacks, and what it was needed for."""
    lines = []
    for module, names, why in INTERNALS:
        for name in names.split():
            try:
                load(module, name)
            except ImportError as error:
                lines.append(f"{module}.{name} ({why}): {error}")
    if not lines:
        grid = HttpGrid("127.0.0.1:1", True, None, token="none")  # connects when it is first used
        of = {"HttpGrid": grid, "ProtobufClient": grid._runtime_client, "TaskIdentity": type(TaskIdentity)}
        for holder, names, why in PRIVATE:
            lines += [f"{holder}.{name} ({why})" for name in names.split() if not hasattr(of[holder], name)]
    return lines


def test_all_that_is_needed_of_flower_is_there() -> None:
    gone = missing()
    assert not gone, "this version of Flower lacks, or has moved:\n" + "\n".join(gone)


def test_all_that_is_missing_is_said_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = (compat.Internal("flwr.nowhere", "A B", "tests"), compat.Internal("flwr.superlink", "gone", "tests, too"))
    monkeypatch.setattr("tests.deploy.test_compat.INTERNALS", odd)
    assert [line.split(" (")[0] for line in missing()] == ["flwr.nowhere.A", "flwr.nowhere.B", "flwr.superlink.gone"]


def test_a_name_that_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(compat._MODULES, "Unheard", "flwr.superlink.grid")
    with pytest.raises(CoterieError, match=r"has no flwr\.superlink\.grid\.Unheard, .* 'coterie\[flower\]'"):
        _ = compat.Unheard  # type: ignore[attr-defined]


def test_internals_of_flower_are_imported_in_one_place_alone() -> None:
    """What is imported there for the types is what is loaded."""
    place = SOURCES / "deploy/flower/compat.py"
    others = {file: found for file in SOURCES.rglob("*.py") if file != place and (found := internals_of(file))}
    assert not others
    assert internals_of(place) == {(module, name) for module, names, _ in INTERNALS for name in names.split()}

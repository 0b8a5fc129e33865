"""What the package says it needs is what it is tested with."""

from __future__ import annotations

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

import coterie

ROOT = Path(__file__).parent.parent
BOUNDED = ("torch", "flwr", "eclipse-zenoh")
"""Packages of which we use more than what they promise to keep, or whose numbers we pin."""


def requirements() -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [text for texts in project["optional-dependencies"].values() for text in texts]
    return [Requirement(text) for text in [*project["dependencies"], *extras]]


def pinned() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {name: Version(version) for name, version in pairs}


def test_there_is_one_version_number() -> None:
    cited = next(line for line in (ROOT / "CITATION.cff").read_text().splitlines() if line.startswith("version:"))
    assert cited == f"version: {coterie.__version__}"


def test_the_tested_versions_are_allowed() -> None:
    versions = pinned()
    wrong = [
        str(need) for need in requirements() if need.name in versions and versions[need.name] not in need.specifier
    ]
    assert not wrong


def test_upper_bounds_are_the_last_minor_versions_that_were_tested() -> None:
    """torch 2.13.0 is tested, so 2.13.9 is allowed and 2.14.0 is not."""
    needs = {need.name: need.specifier for need in requirements()}
    for name in BOUNDED:
        major, minor = pinned()[name].release[:2]
        assert f"{major}.{minor}.9" in needs[name], name
        assert f"{major}.{minor + 1}.0" not in needs[name], f"{name} {major}.{minor + 1} has not been tested"

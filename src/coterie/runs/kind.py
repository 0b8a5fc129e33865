"""How a run's folder was made: only the command that began a run can go on with it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from shlex import quote

from coterie.core.errors import CoterieError

KIND_FILE = "kind.txt"
IN_PYTHON = "own data in Python"
"""The scenario in config.toml where data and model were given to `coterie.run`: only that program has them."""


class Kind(StrEnum):
    """What a folder holds."""

    SIMULATION = "simulation"
    SERVED = "served run"
    PEER = "peer"
    NETWORK = "network of peers"

    def go_on(self, path: Path) -> str:
        """What to do to go on with a run of this kind; a network can only be begun again."""
        match self:
            case Kind.SIMULATION:
                return f"coterie resume {quote(str(path))}"
            case Kind.SERVED:
                return f"coterie serve --resume {quote(str(path))}"
            case Kind.PEER:
                return f"the same coterie peer command with --out {path}"
            case Kind.NETWORK:
                return "coterie peers with another --out"

    def again(self, config: str, out: str, clients: int) -> str:
        """The command that begins a run of this kind once more, with the settings of a run's config.toml."""
        match self:
            case Kind.SIMULATION:
                return f"coterie run --config {config} --out {out}"
            case Kind.SERVED:
                return f"coterie serve --config {config} --clients {clients} --out {out}"
            case Kind.PEER:
                return (
                    f"coterie peer --config {config} --out {out}, with --name, --data, --listen and --seeds as before"
                )
            case Kind.NETWORK:
                return f"coterie peers --config {config} --local {clients} --out {out}"


def kind_of(path: Path) -> Kind:
    """What a run's folder says it holds; one from before folders said so is known by its other files."""
    try:
        return Kind((path / KIND_FILE).read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        pass
    if (path / "deployment.json").is_file() or (path / "superlink.log").is_file():
        return Kind.SERVED
    if (path / "peers").is_dir():
        return Kind.NETWORK
    try:
        return Kind.PEER if '"peers over zenoh"' in (path / "events.jsonl").read_text() else Kind.SIMULATION
    except (OSError, ValueError):
        return Kind.SIMULATION


def check_kind(path: Path, wanted: Kind) -> None:
    """Refuse to go on with a run of another kind."""
    made = kind_of(path)
    if made is Kind.NETWORK and made is not wanted:
        raise CoterieError(f"{path} holds a {made}, which nothing can go on with; begin again: {made.go_on(path)}.")
    if made is not wanted:
        raise CoterieError(f"{path} holds a {made}; go on with it: {made.go_on(path)}.")

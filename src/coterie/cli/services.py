"""What the commands for real machines share: their options, and how a process that others rely on ends."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.core import interrupts
from coterie.core.errors import CoterieError, Interrupted, installing
from coterie.core.terminal import harmless

ConfigFile = Annotated[Path | None, typer.Option("--config", help="the run's TOML file; the same for everyone")]
OwnData = Annotated[
    Path,
    typer.Option(
        "--data",
        help="its data: an .npz, .csv or .parquet file, or a folder of images as CLASS/IMAGE; or a run's TOML file, of "
        "whose scenario it is NAME",
    ),
]
TargetOption = Annotated[
    str | None, typer.Option("--target-column", help="of a table: the column to predict (default: target, label or y)")
]
ReadOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="how data are read: scenario.missing=mean, task=regression; loss=file.py:f"),
]
MemoryOption = Annotated[
    Path | None, typer.Option("--memory", help="folder of what it keeps between rounds (default: .coterie/NAME)")
]
ModelOption = Annotated[str, typer.Option("--model", help="file.py:function, where the run's model is not a named one")]
CertsOption = Annotated[Path | None, typer.Option("--certs", help="a folder of `coterie certs`; without it, no TLS")]
EpochsOption = Annotated[
    int, typer.Option("--most-epochs", help="refuse runs that order more local epochs a round (steps: 100 times that)")
]
SizeOption = Annotated[int, typer.Option("--max-megabytes", help="the largest message that is accepted")]
MEGABYTE = 1 << 20


_between_peers = False
_serving = False


def code_when_stopped() -> int:
    """The exit code of a run that was stopped: 0 where a service was asked to end, and has saved what it had."""
    return 0 if _serving and interrupts.asked_to_end() else 130


@contextmanager
def service(stopped: str) -> Iterator[None]:
    """From here on this process is a service: to be asked to end (SIGTERM) is how it normally ends."""
    global _serving
    _serving = True
    try:
        yield
    except KeyboardInterrupt:  # a run that has begun says more
        raise Interrupted(stopped) from None


def begin_between_peers() -> None:
    """From here on zenoh is at work in this process."""
    global _between_peers
    one_thread()
    _between_peers = True


def leave(end: SystemExit) -> None:
    """End at once where zenoh was at work: its threads now and then keep a process that is over from ending."""
    if _between_peers:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def needs(extra: str, module: str):  # type: ignore[no-untyped-def]
    """A module that needs an extra of ours."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("coterie"):
            raise
        raise CoterieError(f"This needs {error.name}: {installing(extra)}.") from None


def check_named(name: str, names: str, what: str) -> None:
    """Either one member of a run is named, or several that share this process."""
    if bool(name) == bool(listed(names)):
        raise CoterieError(f"Give either --name for one {what}, or --names for several in this process.")


def listed(text: str) -> list[str]:
    """`a,b,c` of the command line."""
    return [part.strip() for part in text.split(",") if part.strip()]


def one_thread() -> None:
    """Clients share a machine more often than not, and small models gain nothing from a second thread."""
    from coterie.core.threads import use_one_thread

    use_one_thread()


def say(text: str) -> None:
    """One line for the user, beside the result."""
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(harmless(text))

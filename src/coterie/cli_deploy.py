"""The commands for real machines: `coterie serve | join | certs`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from coterie.config import from_tables, read_tables
from coterie.errors import CoterieError

ConfigFile = Annotated[Path | None, typer.Option("--config", help="the run's TOML file; the same for everyone")]
NameOption = Annotated[str, typer.Option("--name", help="this client's name; it keeps its memory under it")]
OwnData = Annotated[
    Path, typer.Option("--data", help="its data: an .npz file; or a run's TOML file, of whose scenario it is NAME")
]
MemoryOption = Annotated[
    Path | None, typer.Option("--memory", help="folder of what it keeps between rounds (default: .coterie/NAME)")
]
ModelOption = Annotated[str, typer.Option("--model", help="file.py:function, where the run's model is not a named one")]
CertsOption = Annotated[Path | None, typer.Option("--certs", help="a folder of `coterie certs`; without it, no TLS")]
SizeOption = Annotated[int, typer.Option("--max-megabytes", help="the longest message that is accepted")]
_MEGABYTE = 1 << 20


def add_commands(app: typer.Typer) -> None:
    """Hang the commands into the program."""
    for command in (serve, join, certs):
        app.command()(command)


def serve(
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the run (default: runs/...)")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="folder of a served run to go on with")] = None,
    host: Annotated[str, typer.Option("--host", help="where to listen; 0.0.0.0: everywhere")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port to listen at")] = 9080,
    clients: Annotated[int, typer.Option("--clients", help="begin when so many clients are there")] = 2,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds a client may take for an answer")] = 120.0,
    patience: Annotated[float, typer.Option("--patience", help="seconds to wait for clients")] = 300.0,
    certs: CertsOption = None,
    superlink: Annotated[
        str | None, typer.Option("--superlink", help="HOST:PORT of a running SuperLink (--isolation process)")
    ] = None,
    max_megabytes: SizeOption = 512,
) -> None:
    """Run a method with real clients, on Flower: start a SuperLink (or use one) and wait for `coterie join`."""
    deploy = _needs("flower", "coterie.engine.deploy")
    superlinks = _needs("flower", "coterie.engine.superlink")
    if (config is None) == (resume is None):
        raise CoterieError("Give either --config run.toml for a new run, or --resume FOLDER to go on with one.")
    settings = deploy.config_of(resume) if resume is not None else from_tables(read_tables(_given(config)))
    folder = resume or out or Path("runs") / f"{settings.method}-served-seed{settings.seed}"
    options = deploy.ServeOptions(clients, timeout, patience, max_megabytes * _MEGABYTE)
    security = None if certs is None else superlinks.ServerSecurity.of(certs)

    from coterie.cli import watched

    watched(
        settings,
        folder,
        lambda view: deploy.serve(
            settings,
            folder,
            options,
            host=host,
            port=port,
            security=security,
            superlink=superlink,
            view=view,
            resume=resume is not None,
        ),
    )


def join(
    server: Annotated[str, typer.Option("--server", help="HOST:PORT of `coterie serve`, or of a SuperLink")],
    name: NameOption,
    data: OwnData,
    memory: MemoryOption = None,
    model: ModelOption = "",
    certs: CertsOption = None,
    wait: Annotated[float, typer.Option("--wait", help="seconds to wait for a server that is away")] = 600.0,
    stay: Annotated[bool, typer.Option("--stay", help="stay for the next run when one is over")] = False,
    max_megabytes: SizeOption = 512,
) -> None:
    """Take part in a run as a client, with data that stay here."""
    client = _needs("flower", "coterie.engine.flower_client")
    from coterie.engine.device import Device, client_data

    if ":" not in server:
        raise CoterieError(f"--server needs HOST:PORT, such as 127.0.0.1:9080, not {server!r}.")
    security = client.Security()
    if certs is not None:
        ca, key = certs / "ca.pem", certs / "node.key"
        if not ca.is_file():
            raise CoterieError(f"There is no {ca}; --certs takes the folder of a client, DIR/clients/{name}.")
        security = client.Security(ca, key if key.is_file() else None)
    _one_thread()
    device = Device(name, client_data(data, name), memory or Path(".coterie") / name, model)
    client.join(device, server, security, wait=wait, limit=max_megabytes * _MEGABYTE, stay=stay, note=_say)
    _say(f"{name}: the run is over")


def certs(
    folder: Annotated[Path, typer.Argument(help="where to put them; a CA that is there already is used")],
    names: Annotated[str, typer.Option("--names", help="names of clients or peers, such as a,b,c")] = "",
    hosts: Annotated[str, typer.Option("--hosts", help="addresses they are reached at")] = "127.0.0.1,localhost",
) -> None:
    """Make a CA, a server's certificate, and a folder with keys for every client: enough for a trial."""
    made = _needs("flower", "coterie.engine.certificates")
    listed = [name.strip() for name in names.split(",") if name.strip()]
    for path in made.make_certificates(folder, listed, [host.strip() for host in hosts.split(",") if host.strip()]):
        Console().print(str(path), markup=False, highlight=False, soft_wrap=True)


def _needs(extra: str, module: str):  # type: ignore[no-untyped-def]
    """A module that needs an extra of ours."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("coterie"):
            raise
        raise CoterieError(f"This needs {error.name}: pip install 'coterie[{extra}]'.") from None


def _given(config: Path | None) -> Path:
    assert config is not None
    return config


def _one_thread() -> None:
    """Clients share a machine more often than not, and small models gain nothing from a second thread."""
    import torch

    torch.set_num_threads(1)


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(text)

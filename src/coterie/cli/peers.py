"""The commands for peers without a server: `coterie peer | peers`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie.cli.services import (
    MEGABYTE,
    CertsOption,
    OwnData,
    SizeOption,
    begin_between_peers,
    check_named,
    listed,
    needs,
    say,
    service,
)

_MOST_ROWS = 50
_STOPPED = "Stopped before the first round; nothing was learnt yet"


def peer(
    config: Annotated[Path, typer.Option("--config", help="the run's TOML file; the same for every peer")],
    data: OwnData,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT where others reach this peer")],
    name: Annotated[str, typer.Option("--name", help="this peer's name")] = "",
    names: Annotated[
        str,
        typer.Option(
            "--names",
            help="instead of --name: several peers in this process, a,b,c or all; --data is then a folder with a file "
            "(or folder of images) for each, or a run's TOML file, and --certs one with the folder of each",
        ),
    ] = "",
    seeds: Annotated[str, typer.Option("--seeds", help="HOST:PORT[,HOST:PORT..] of peers to ask about others")] = "",
    out: Annotated[
        Path | None, typer.Option("--out", help="folder of this peer (default: runs/peer-NAME), or of all in --names")
    ] = None,
    peers: Annotated[int, typer.Option("--peers", help="begin when so many peers are there")] = 2,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds to wait for an answer, or a slow peer")] = 10.0,
    patience: Annotated[float, typer.Option("--patience", help="seconds to wait for the first peers")] = 300.0,
    free: Annotated[bool, typer.Option("--free", help="peers do not wait for each other's rounds")] = False,
    certs: CertsOption = None,
    max_megabytes: SizeOption = 512,
    workers: Annotated[int, typer.Option("--workers", help="how many of --names compute at once")] = 1,
) -> None:
    """Be one peer of a network without a server, or several; the same --out goes on where an earlier call stopped."""
    addresses = needs("peers", "coterie.deploy.zenoh.address")
    peering = needs("peers", "coterie.runs.peer")
    hosting = needs("peers", "coterie.runs.peer_host")
    from coterie.cli.runs import watched
    from coterie.deploy.boundary import check_name
    from coterie.deploy.ports import check_address
    from coterie.deploy.zenoh.peer import PeerPace
    from coterie.runs.config import from_tables, read_tables
    from coterie.runs.experiment import clients_data

    check_named(name, names, "peer")
    check_address("--listen", listen, "127.0.0.1:7501")
    settings = from_tables(read_tables(config))
    options = peering.PeerOptions(peers, patience, PeerPace(not free, timeout), max_megabytes * MEGABYTE)
    addresses.zenoh.init_log_from_env_or("error")
    if name:
        folder = out or _usual_folder("peer", check_name(name, "--name"))
        security = None if certs is None else addresses.PeerSecurity.of(certs)
        address = addresses.Address(listen, tuple(listed(seeds)), security)
        begin_between_peers()
        with service(_STOPPED), watched(settings, folder) as view:
            peering.run_peer(settings, name, data, address, folder, options, view=view)
        return
    peering.peer_method(settings)
    theirs = clients_data(data, listed(names), settings.task, settings.scenario)
    hosted = hosting.Hosted(theirs, None if certs is None else addresses.PeerSecurity.of_each(certs, theirs), workers)
    first = next(iter(theirs))
    security = None if hosted.security is None else hosted.security[first]  # mTLS asks for any of the CA
    address = addresses.Address(listen, tuple(listed(seeds)), security)
    folder = out or _usual_folder("peers", first)
    begin_between_peers()
    with service(_STOPPED):
        _show(hosting.run_peers(settings, hosted, address, folder, options, view=_told()), folder)


def peers(
    local: Annotated[int, typer.Option("--local", help="how many peers to start on this machine")],
    config: Annotated[Path, typer.Option("--config", help="a TOML file with a peer method and a scenario")],
    out: Annotated[Path, typer.Option("--out", help="folder of the network, one folder a peer")] = Path("runs/peers"),
    port: Annotated[int, typer.Option("--port", help="first of the ports they listen at")] = 7501,
    free: Annotated[bool, typer.Option("--free", help="everyone at its own pace, instead of in lock-step")] = False,
    certs: Annotated[bool, typer.Option("--tls", help="with certificates made for the occasion")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds to wait for an answer, or a slow peer")] = 10.0,
) -> None:
    """Start a network of peers, each a process of its own on this machine: a first look."""
    local_network = needs("peers", "coterie.runs.launch_local")
    result = local_network.run_local(config, local, out, port, free=free, tls=certs, seconds=timeout, view=_told())
    _show(result, out)


def _usual_folder(what: str, name: str) -> Path:
    """Where a run is without --out; every name that a peer can have makes one."""
    from coterie.deploy.boundary import place

    home = place(Path("runs"), name)
    return home.with_name(f"{what}-{home.name}")


def _told() -> Any:
    """Who follows several peers: what they say, and the report."""
    from coterie.report.observers import ReportWriter
    from coterie.runs.view import NotesOnly, Views

    return Views(NotesOnly(say), ReportWriter())


def _show(result: Any, out: Path) -> None:
    from coterie.runs.network_result import peer_results

    Console().print(_peer_table(result, peer_results(out, result.client_ids)))
    Console().print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _peer_table(result: Any, results: Mapping[str, Mapping[str, Any]]) -> Any:
    """How each peer of a network has done."""
    from rich.table import Table

    from coterie.core.measures import measure_of, score_of

    measure = measure_of(next(iter(results.values())))
    table = Table(title=f"{result.method} between {len(results)} peers")
    for column in ("peer", measure.title, "community", "sent", "received", "failures"):
        table.add_column(column, justify="left" if column == "peer" else "right")
    for index, (name, one) in enumerate(list(results.items())[:_MOST_ROWS]):
        group = "" if result.clusters is None else str(result.clusters[index])
        crossed = [f"{one[key]:,}" for key in ("bytes_up", "bytes_down")]
        table.add_row(name, measure.text(score_of(one)), group, *crossed, str(one["failures"]))
    if len(results) > _MOST_ROWS:
        table.add_row(f"and {len(results) - _MOST_ROWS} more", *[""] * 5)
    return table

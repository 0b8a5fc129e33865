"""The commands for real machines: `coterie serve | join | peer | peers | certs`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie.core import interrupts
from coterie.core.errors import CoterieError, Interrupted, installing
from coterie.core.terminal import harmless

ConfigFile = Annotated[Path | None, typer.Option("--config", help="the run's TOML file; the same for everyone")]
NameOption = Annotated[str, typer.Option("--name", help="this client's name; it keeps its memory under it")]
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
_MEGABYTE = 1 << 20


_between_peers = False
_serving = False


def code_when_stopped() -> int:
    """The exit code of a run that was stopped: 0 where a service was asked to end, and has saved what it had."""
    return 0 if _serving and interrupts.asked_to_end() else 130


@contextmanager
def _service(stopped: str) -> Iterator[None]:
    """From here on this process is a service: to be asked to end (SIGTERM) is how it normally ends."""
    global _serving
    _serving = True
    try:
        yield
    except KeyboardInterrupt:  # a run that has begun says more
        raise Interrupted(stopped) from None


def leave(end: SystemExit) -> None:
    """End at once where zenoh was at work: its threads now and then keep a process that is over from ending."""
    if _between_peers:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(end.code if isinstance(end.code, int) else int(end.code is not None))


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Run the server of a run with real clients (Flower)")(serve)
    app.command(short_help="Take part in a run as one client or several")(join)
    app.command(short_help="Run one peer of a network without a server (zenoh)")(peer)
    app.command(short_help="Start a network of peers on this machine")(peers)
    app.command(short_help="Make certificates and keys for a deployment")(certs)


def serve(
    config: ConfigFile = None,
    out: Annotated[Path | None, typer.Option("--out", help="folder of the run (default: runs/...)")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="folder of a served run to go on with")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="another number of rounds than the file's")] = None,
    host: Annotated[str, typer.Option("--host", help="where to listen; 0.0.0.0: everywhere")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="port to listen at")] = 9080,
    clients: Annotated[int, typer.Option("--clients", help="begin when so many clients are there")] = 2,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds a client may take for an answer")] = 120.0,
    patience: Annotated[float, typer.Option("--patience", help="seconds to wait for clients")] = 300.0,
    quorum: Annotated[
        float | None, typer.Option("--quorum", help="close a round when this share of its clients has answered")
    ] = None,
    late: Annotated[
        str | None, typer.Option("--late", help="what becomes of later replies: drop, or use in the next round")
    ] = None,
    certs: CertsOption = None,
    superlink: Annotated[
        str | None, typer.Option("--superlink", help="HOST:PORT of a running SuperLink (--isolation process)")
    ] = None,
    max_megabytes: SizeOption = 512,
) -> None:
    """Run a method with real clients, on Flower: start a SuperLink (or use one) and wait for `coterie join`."""
    deploy = _needs("flower", "coterie.runs.serve")
    superlinks = _needs("flower", "coterie.deploy.flower.superlink")
    from coterie.cli.runs import watched
    from coterie.runs.config import from_tables, read_tables
    from coterie.runs.experiment import config_of

    if (config is None) == (resume is None):
        raise CoterieError("Give either --config run.toml for a new run, or --resume FOLDER to go on with one.")
    settings = from_tables(read_tables(config)) if config is not None else config_of(resume or Path())
    given: dict[str, Any] = {"rounds": rounds, "quorum": quorum, "late": late}
    settings = replace(settings, **{key: value for key, value in given.items() if value is not None})
    folder = resume or out or Path("runs") / f"{settings.method}-served-seed{settings.seed}"
    options = deploy.ServeOptions(clients, timeout, patience, max_megabytes * _MEGABYTE)
    security = None if certs is None else superlinks.ServerSecurity.of(certs)
    with _service("Stopped before the first round; nothing was learnt yet"), watched(settings, folder) as view:
        deploy.serve(
            settings,
            folder,
            options,
            host=host,
            port=port,
            security=security,
            superlink=superlink,
            view=view,
            resume=resume is not None,
        )


def join(
    server: Annotated[str, typer.Option("--server", help="HOST:PORT of `coterie serve`, or of a SuperLink")],
    data: OwnData,
    name: Annotated[str, typer.Option("--name", help="this client's name; it keeps its memory under it")] = "",
    names: Annotated[
        str,
        typer.Option(
            "--names",
            help="instead of --name: several clients in this process, a,b,c or all; --data is then a folder with a "
            "file (or folder of images) for each, or a run's TOML file, and --memory the folder of theirs",
        ),
    ] = "",
    target_column: TargetOption = None,
    assignments: ReadOption = None,
    memory: MemoryOption = None,
    model: ModelOption = "",
    certs: CertsOption = None,
    wait: Annotated[float, typer.Option("--wait", help="seconds to wait for a server that is away")] = 600.0,
    stay: Annotated[bool, typer.Option("--stay", help="when a run is over, wait for the next one")] = False,
    max_megabytes: SizeOption = 512,
    least_flip: Annotated[float, typer.Option("--least-flip", help="flip embedding bits at least this often")] = 0.0,
    refuse: Annotated[
        str, typer.Option("--refuse", help="what not to tell: labels,features,... (docs/privacy.md)")
    ] = "",
    most_questions: Annotated[
        int, typer.Option("--most-questions", help="answer so many questions about labels at most, ever; 0: no limit")
    ] = 30,  # as deploy.consent.MOST_QUESTIONS
    least_noise: Annotated[
        float, typer.Option("--least-noise", help="deviation of the noise on label shares behind such answers")
    ] = 0.05,  # as deploy.consent.LEAST_NOISE
    most_epochs: EpochsOption = 1000,
) -> None:
    """Take part in a run as a client, or as several, with data that stay here."""
    client = _needs("flower", "coterie.deploy.flower.client")
    from coterie.cli.runs import reading_of
    from coterie.deploy.boundary import check_name, place
    from coterie.deploy.client import Device
    from coterie.deploy.consent import Consent, own_secret, refused_words
    from coterie.deploy.gateway import Gateway
    from coterie.deploy.ports import check_address
    from coterie.runs.client_folder import keeping
    from coterie.runs.experiment import client_data, clients_data

    if bool(name) == bool(names):
        raise CoterieError("Give either --name for one client, or --names for several in this process.")
    consent = Consent(refused_words(refuse), least_flip, most_questions, least_noise)
    if "labels" in consent.refuse and "scores" not in consent.refuse:
        _say("note: scores of models made up by a server tell label shares too; to keep these, --refuse labels,scores")
    check_address("--server", server, "127.0.0.1:9080")
    security = client.Security()
    if certs is not None:
        ca, key = certs / "ca.pem", certs / "node.key"
        if not ca.is_file():
            raise CoterieError(
                f"There is no {ca}; --certs takes the folder of a client or a gateway, DIR/clients/{name or 'NAME'}."
            )
        security = client.Security(ca, key if key.is_file() else None)
    _one_thread()
    code: list[str] = []
    how, task = reading_of(assignments, code, target_column=target_column)
    if name:
        check_name(name, "--name")
        theirs = {name: client_data(data, name, task, how)}
    else:
        theirs = dict(clients_data(data, _listed(names), task, how))
    homes = {each: memory if memory and name else place(memory or Path(".coterie"), each) for each in theirs}
    devices = [
        Device(
            each,
            own,
            homes[each],
            model,
            code=code,
            at_end=keeping(homes[each]),
            most_epochs=most_epochs,
            secret=own_secret(homes[each]),
            consent=consent,
        )
        for each, own in theirs.items()
    ]
    member = devices[0] if name else Gateway(devices)
    with _service(f"{member.name} has left; what it keeps between rounds is kept"):
        client.join(member, server, security, wait=wait, limit=max_megabytes * _MEGABYTE, stay=stay, note=_say)
    first, home = next(iter(homes.items()))
    if (home / "models").is_dir():
        _say(f"{member.name}: the run is over; use a model with coterie predict {home} --client {first} --data FILE")
    else:
        _say(f"{member.name}: the run is over; it left no model in {home}")


def peer(
    config: Annotated[Path, typer.Option("--config", help="the run's TOML file; the same for every peer")],
    name: NameOption,
    data: OwnData,
    listen: Annotated[str, typer.Option("--listen", help="HOST:PORT where others reach this peer")],
    seeds: Annotated[str, typer.Option("--seeds", help="HOST:PORT[,HOST:PORT..] of peers to ask about others")] = "",
    out: Annotated[Path | None, typer.Option("--out", help="folder of this peer (default: runs/peer-NAME)")] = None,
    peers: Annotated[int, typer.Option("--peers", help="begin when so many peers are there")] = 2,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds to wait for an answer, or a slow peer")] = 10.0,
    patience: Annotated[float, typer.Option("--patience", help="seconds to wait for the first peers")] = 300.0,
    free: Annotated[bool, typer.Option("--free", help="peers do not wait for each other's rounds")] = False,
    certs: CertsOption = None,
    max_megabytes: SizeOption = 512,
) -> None:
    """Be one peer of a network without a server; the same --out goes on where an earlier call stopped."""
    addresses = _needs("peers", "coterie.deploy.zenoh.address")
    peering = _needs("peers", "coterie.runs.peer")
    from coterie.cli.runs import watched
    from coterie.deploy.boundary import check_name, place
    from coterie.deploy.ports import check_address
    from coterie.deploy.zenoh.peer import PeerPace
    from coterie.runs.config import from_tables, read_tables

    check_address("--listen", listen, "127.0.0.1:7501")
    settings = from_tables(read_tables(config))
    security = None if certs is None else addresses.PeerSecurity.of(certs)
    address = addresses.Address(listen, tuple(_listed(seeds)), security)
    options = peering.PeerOptions(peers, patience, PeerPace(not free, timeout), max_megabytes * _MEGABYTE)
    folder = out or place(Path("runs"), f"peer-{check_name(name, '--name')}")
    _one_thread()
    addresses.zenoh.init_log_from_env_or("error")
    global _between_peers
    _between_peers = True
    with _service("Stopped before the first round; nothing was learnt yet"), watched(settings, folder) as view:
        peering.run_peer(settings, name, data, address, folder, options, view=view)


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
    local_network = _needs("peers", "coterie.runs.launch_local")
    from coterie.report.observers import ReportWriter
    from coterie.runs.view import NotesOnly, Views

    view = Views(NotesOnly(_say), ReportWriter())
    result = local_network.run_local(config, local, out, port, free=free, tls=certs, seconds=timeout, view=view)
    Console().print(_peer_table(result, local_network.peer_results(out, result.client_ids)))
    Console().print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)


def _peer_table(result: Any, results: Mapping[str, Mapping[str, Any]]) -> Any:
    """How each peer of a network has done."""
    from rich.table import Table

    table = Table(title=f"{result.method} between {len(results)} peers")
    for column in ("peer", "accuracy", "community", "sent", "received", "failures"):
        table.add_column(column, justify="left" if column == "peer" else "right")
    for index, (name, one) in enumerate(results.items()):
        accuracy = one["per_client_accuracy"][0]
        group = "" if result.clusters is None else str(result.clusters[index])
        share = "" if accuracy is None else f"{100 * accuracy:.1f} %"
        table.add_row(name, share, group, f"{one['bytes_up']:,}", f"{one['bytes_down']:,}", str(one["failures"]))
    return table


def certs(
    folder: Annotated[Path, typer.Argument(help="where to put them; a CA that is there already is used")],
    names: Annotated[str, typer.Option("--names", help="names of clients or peers, such as a,b,c")] = "",
    gateway: Annotated[
        str, typer.Option("--gateway", help="one key for all of --names, for a gateway that answers for them")
    ] = "",
    hosts: Annotated[str, typer.Option("--hosts", help="addresses they are reached at")] = "127.0.0.1,localhost",
) -> None:
    """Make a CA, a server's certificate, and a folder with keys for every client: enough for a trial."""
    made = _needs("flower", "coterie.deploy.certificates")
    listed = _listed(names)
    new = made.make_certificates(folder, listed, _listed(hosts), gateway)
    say = Console(soft_wrap=True, highlight=False, markup=False)
    stay = [path.name for path in new if path.parent == folder]
    if stay:
        say.print(f"{folder}: {', '.join(stay)} (the keys stay here, ca.pem is public)")
    for name in [gateway] if gateway else listed:
        files = ", ".join(path.name for path in new if path.parent == folder / "clients" / name)
        say.print(f"{folder / 'clients' / name}: {files} (for {name}, over a channel you trust)")


def _needs(extra: str, module: str):  # type: ignore[no-untyped-def]
    """A module that needs an extra of ours."""
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("coterie"):
            raise
        raise CoterieError(f"This needs {error.name}: {installing(extra)}.") from None


def _listed(text: str) -> list[str]:
    """`a,b,c` of the command line."""
    return [part.strip() for part in text.split(",") if part.strip()]


def _one_thread() -> None:
    """Clients share a machine more often than not, and small models gain nothing from a second thread."""
    from coterie.core.threads import use_one_thread

    use_one_thread()


def _say(text: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False, markup=False).print(harmless(text))

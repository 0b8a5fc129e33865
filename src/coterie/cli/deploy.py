"""The commands for real machines: `coterie serve | join | certs`, and those of peers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from coterie.cli.peers import peer, peers
from coterie.cli.services import (
    MEGABYTE,
    CertsOption,
    ConfigFile,
    EpochsOption,
    MemoryOption,
    ModelOption,
    OwnData,
    ReadOption,
    SizeOption,
    TargetOption,
    check_named,
    listed,
    needs,
    one_thread,
    say,
    service,
)
from coterie.core.errors import CoterieError


def add_commands(app: typer.Typer) -> None:
    """Add the commands to the command line."""
    app.command(short_help="Run the server of a run with real clients (Flower)")(serve)
    app.command(short_help="Take part in a run as one client or several")(join)
    app.command(short_help="Run a peer, or several, of a network without a server (zenoh)")(peer)
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
    deploy = needs("flower", "coterie.runs.serve")
    superlinks = needs("flower", "coterie.deploy.flower.superlink")
    from coterie.cli.runs import watched
    from coterie.runs.config import from_tables, read_tables
    from coterie.runs.experiment import config_of

    if (config is None) == (resume is None):
        raise CoterieError("Give either --config run.toml for a new run, or --resume FOLDER to go on with one.")
    settings = from_tables(read_tables(config)) if config is not None else config_of(resume or Path())
    given: dict[str, Any] = {"rounds": rounds, "quorum": quorum, "late": late}
    settings = replace(settings, **{key: value for key, value in given.items() if value is not None})
    folder = resume or out or Path("runs") / f"{settings.method}-served-seed{settings.seed}"
    options = deploy.ServeOptions(clients, timeout, patience, max_megabytes * MEGABYTE)
    security = None if certs is None else superlinks.ServerSecurity.of(certs)
    with service("Stopped before the first round; nothing was learnt yet"), watched(settings, folder) as view:
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
    client = needs("flower", "coterie.deploy.flower.client")
    from coterie.cli.runs import reading_of
    from coterie.deploy.boundary import check_name, place
    from coterie.deploy.client import Device
    from coterie.deploy.consent import Consent, own_secret, refused_words
    from coterie.deploy.gateway import Gateway
    from coterie.deploy.ports import check_address
    from coterie.runs.client_folder import keeping
    from coterie.runs.experiment import client_data, clients_data

    check_named(name, names, "client")
    consent = Consent(refused_words(refuse), least_flip, most_questions, least_noise)
    if "labels" in consent.refuse and "scores" not in consent.refuse:
        say("note: scores of models made up by a server tell label shares too; to keep these, --refuse labels,scores")
    check_address("--server", server, "127.0.0.1:9080")
    security = client.Security()
    if certs is not None:
        ca, key = certs / "ca.pem", certs / "node.key"
        if not ca.is_file():
            raise CoterieError(
                f"There is no {ca}; --certs takes the folder of a client or a gateway, DIR/clients/{name or 'NAME'}."
            )
        security = client.Security(ca, key if key.is_file() else None)
    one_thread()
    code: list[str] = []
    how, task = reading_of(assignments, code, target_column=target_column)
    if name:
        check_name(name, "--name")
        theirs = {name: client_data(data, name, task, how)}
    else:
        theirs = dict(clients_data(data, listed(names), task, how))
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
    with service(f"{member.name} has left; what it keeps between rounds is kept"):
        client.join(member, server, security, wait=wait, limit=max_megabytes * MEGABYTE, stay=stay, note=say)
    first, home = next(iter(homes.items()))
    if (home / "models").is_dir():
        say(f"{member.name}: the run is over; use a model with coterie predict {home} --client {first} --data FILE")
    else:
        say(f"{member.name}: the run is over; it left no model in {home}")


def certs(
    folder: Annotated[Path, typer.Argument(help="where to put them; a CA that is there already is used")],
    names: Annotated[str, typer.Option("--names", help="names of clients or peers, such as a,b,c")] = "",
    gateway: Annotated[
        str, typer.Option("--gateway", help="one key for all of --names, for a gateway that answers for them")
    ] = "",
    hosts: Annotated[str, typer.Option("--hosts", help="addresses they are reached at")] = "127.0.0.1,localhost",
) -> None:
    """Make a CA, a server's certificate, and a folder with keys for every client: enough for a trial."""
    made = needs("flower", "coterie.deploy.certificates")
    wanted = listed(names)
    new = made.make_certificates(folder, wanted, listed(hosts), gateway)
    screen = Console(soft_wrap=True, highlight=False, markup=False)
    stay = [path.name for path in new if path.parent == folder]
    if stay:
        screen.print(f"{folder}: {', '.join(stay)} (the keys stay here, ca.pem is public)")
    for name in [gateway] if gateway else wanted:
        files = ", ".join(path.name for path in new if path.parent == folder / "clients" / name)
        screen.print(f"{folder / 'clients' / name}: {files} (for {name}, over a channel you trust)")

"""A run whose clients are on other machines, from its configuration to its report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

from flwr.serverapp import Grid

from coterie.core.errors import CoterieError
from coterie.core.samples import ClientId
from coterie.core.wire import WireError
from coterie.data.schema import SCHEMA_FILE
from coterie.deploy.boundary import checked
from coterie.deploy.flower.directory import Names
from coterie.deploy.flower.superlink import ServerSecurity, SuperLink, own_superlink
from coterie.deploy.flower.transport import FlowerTransport
from coterie.deploy.hello import Hello
from coterie.deploy.ports import await_free
from coterie.deploy.protocol import ADMITTED, NOT_ADMITTED, RunSpec, settings_of, to_text
from coterie.deploy.server import LIMIT, Hellos, RemoteFederation, Transport, gathered
from coterie.methods import method_named
from coterie.methods.fedavg import FedAvg
from coterie.methods.how_many import in_rounds
from coterie.methods.local_training import LocalTraining
from coterie.methods.p2p.base import PeerMethod
from coterie.runs.checkpoint import sealed, unsealed
from coterie.runs.config import RunConfig
from coterie.runs.folder import RunFolder, RunKind, check_kind, finished
from coterie.runs.loop import RoundLoop
from coterie.runs.rates import found_with
from coterie.runs.records import CONFIG_FILE, RESULT_FILE
from coterie.runs.result import Result
from coterie.runs.spec import (
    NoMajority,
    agree,
    alone,
    check_deployable,
    common_schema,
    left_out,
    model_of,
    odd_ones,
    tests_alike,
)
from coterie.runs.view import View, Views

DEPLOYMENT = "deployment.json"
_MOST_NOTICES = 20
_GOING_SECONDS = 15.0


@dataclass(frozen=True)
class ServeOptions:
    """How a server waits and what it accepts."""

    clients: int = 2
    """The run begins when so many clients are there; any one of them is enough to go on."""
    seconds: float = 120.0
    """How long a client may take for its answer."""
    patience: float = 300.0
    """How long to wait for clients before the run ends unfinished."""
    limit: int = LIMIT
    """The longest message, in bytes."""

    def __post_init__(self) -> None:
        if self.clients < 1 or self.seconds <= 0 or self.patience < 0 or self.limit < 1:
            raise CoterieError("--clients and --max-megabytes must be at least 1, --timeout above 0, --patience 0.")


def serve(
    config: RunConfig,
    out: Path,
    options: ServeOptions,
    *,
    host: str,
    port: int,
    security: ServerSecurity | None = None,
    superlink: str | None = None,
    view: View | None = None,
    resume: bool = False,
) -> Result:
    """Run a configuration on a SuperLink of our own, or on one that is there already."""
    if resume:
        _check_resumable(out)
    _check(config)
    if superlink is None:
        # the SuperLink of a server that was killed takes a moment to go
        await_free(host, port, "--port or --host", _GOING_SECONDS if resume else 0.0)
    watcher = Views(view)
    folder = _opened(config, out, resume)
    with folder.starting(resume):
        if superlink is not None:
            ca = None if security is None else security.ca
            return _served(config, folder, options, SuperLink(superlink, ca, None, None), None, watcher, resume)
        return _served_by_own(config, folder, options, host, port, security, watcher, resume)


def _served_by_own(
    config: RunConfig,
    folder: RunFolder,
    options: ServeOptions,
    host: str,
    port: int,
    security: ServerSecurity | None,
    watcher: View,
    resume: bool,
) -> Result:
    with own_superlink(host, port, security, folder.path / "superlink.log", options.limit) as link:
        names = link.register(security) if security is not None and security.clients else None
        lock = "TLS and keys" if names else "TLS" if security is not None else "no TLS"
        watcher.note(f"waiting for {options.clients} clients at {host}:{port} ({lock})")
        return _served(config, folder, options, link, names, watcher, resume)


def _served(
    config: RunConfig,
    folder: RunFolder,
    options: ServeOptions,
    link: SuperLink,
    names: Names | None,
    view: View,
    resume: bool,
) -> Result:
    with link.grid() as grid:
        transport = FlowerTransport(
            grid, seconds=options.seconds, names=names, note=view.note, alive=link.check, limit=options.limit
        )
        result = conduct(config, folder, transport, options, view=view, resume=resume)
        transport.farewell()
        return result


def run_on_grid(config: RunConfig, grid: Grid, options: ServeOptions, path: Path, view: View | None = None) -> Result:
    """The same inside Flower's own server process, for `flwr run`."""
    _check(config)
    resume = (path / DEPLOYMENT).is_file()
    if resume:
        _check_resumable(path)
    folder = _opened(config, path, resume)
    with folder.starting(resume):
        return conduct(
            config, folder, FlowerTransport(grid, seconds=options.seconds), options, view=view, resume=resume
        )


def conduct(
    config: RunConfig,
    folder: RunFolder,
    transport: Transport,
    options: ServeOptions,
    *,
    view: View | None = None,
    resume: bool = False,
) -> Result:
    """Agree with the clients on what is learnt, then run the rounds."""
    watcher = Views(view)
    file = folder.path / DEPLOYMENT
    noticed: list[str] = []
    refused: set[ClientId] = set()
    if file.is_file():
        spec, known, inputs = _read(file)
    else:
        fitting = _FittingClients(config, transport, watcher)
        # nothing is agreed yet, so the run can still be another; --config is not read again
        go_on = f"{folder.go_on} (it reads {folder.path / CONFIG_FILE}; what is wrong with the run, correct there)"
        first = gathered(transport, options.clients, options.patience, go_on, fitting, watcher.note, fitting.others)
        noticed, refused = fitting.notices(first), fitting.odd
        spec, known, inputs = agree(config, first), [], next(iter(first.values())).inputs
        rated = _rated(config, spec, transport, options, inputs, watcher)
        if rated is not spec:
            spec, config = rated, replace(config, settings={**config.settings, "lr": rated.build_method().lr})
            folder.write(CONFIG_FILE, config.to_toml().encode())
        _write(folder, spec, [], inputs)
        folder.write(SCHEMA_FILE, common_schema(spec, next(iter(first.values()))).to_json().encode())
    method, task = in_rounds(spec.build_method()), spec.build_task(model_of(config), config.loss, config.metric)
    fed = RemoteFederation(
        method.task(replace(task, tests_alike=tests_alike(config))),
        spec,
        transport,
        known=known,
        refused=refused,
        patience=options.patience,
        limit=options.limit,
        path="clients over Flower",
        go_on=folder.go_on,
        inputs=inputs,
        quorum=config.closing,
        note=watcher.note,
        on_saved=lambda _, clients: _write(folder, spec, clients, inputs),
    )
    return RoundLoop(method, fed, config, folder, view=watcher, scenario=config.subject, noticed=noticed).run(resume)


def _rated(
    config: RunConfig, spec: RunSpec, transport: Transport, options: ServeOptions, inputs: str, view: View
) -> RunSpec:
    """What the run is about, with a learning rate: one found by a test, unless the user or the scenario has one."""
    method = spec.build_method()
    if method.has_rate:
        return spec
    shared = {f.name: getattr(method, f.name) for f in fields(LocalTraining)}
    trial = FedAvg(**shared)
    about = replace(spec, run=f"{spec.run}-rate", method=trial.name, settings=settings_of(trial))
    task = about.build_task(model_of(config), config.loss, config.metric)
    fed = RemoteFederation(
        task, about, transport, patience=options.patience, limit=options.limit, inputs=inputs, strict=False
    )
    found = found_with(fed, trial)
    view.note(found.said)
    return replace(spec, settings=settings_of(replace(method, lr=found.rate)))


def _check(config: RunConfig) -> None:
    if isinstance(check_deployable(config), PeerMethod):
        raise CoterieError(f"{config.method} has no server; run it between peers: coterie peer --config ...")


def _check_resumable(path: Path) -> None:
    if (path / RESULT_FILE).is_file():
        raise finished(path)
    if not (path / DEPLOYMENT).is_file() and not (path / CONFIG_FILE).is_file():
        raise CoterieError(f"{path} is not the folder of a run that was served; leave --resume out to begin one.")
    check_kind(path, RunKind.SERVED)


def _opened(config: RunConfig, path: Path, resume: bool) -> RunFolder:
    if not resume:
        return RunFolder.create(path, config.to_toml(), RunKind.SERVED)
    folder = RunFolder(path, RunKind.SERVED)
    if folder.checkpoint.exists:  # what is damaged is said now, and not when all clients are there
        folder.checkpoint.state(config.method, method_named(config.method).state_type)  # type: ignore[union-attr]
    folder.write(CONFIG_FILE, config.to_toml().encode())  # the rounds may be others
    return folder


def _write(folder: RunFolder, spec: RunSpec, clients: list[ClientId], inputs: str) -> None:
    content = {"agreement": json.loads(to_text(spec)), "clients": clients, "inputs": inputs}
    folder.write(DEPLOYMENT, sealed(content, indent=1))


def _read(file: Path) -> tuple[RunSpec, list[ClientId], str]:
    """What the run was about when it was begun, and who has taken part."""
    try:
        saved = {"inputs": "", **unsealed(file.read_bytes())}  # once it was written without
        if set(saved) != {"agreement", "clients", "inputs"}:
            raise WireError(f"it holds {sorted(saved)}")
        defaults = {f.name: f.default for f in fields(RunSpec) if f.default is not MISSING}  # older runs say less
        said = checked(RunSpec, json.dumps({**defaults, **saved["agreement"]}))
        return said, list(saved["clients"]), str(saved["inputs"])
    except (OSError, ValueError, TypeError, WireError) as error:
        raise CoterieError(f"{file} cannot be read ({error}); restore it, or begin with another --out.") from error


class _FittingClients:
    """Those of the first clients whose data fit together; the others are told why they do not, each once."""

    def __init__(self, config: RunConfig, transport: Transport, view: View) -> None:
        self._config, self._transport, self._view = config, transport, view
        self._unclear = ""
        self._odd: dict[ClientId, str] = {}
        self._times = Counter[ClientId]()

    def __call__(self, there: Hellos) -> dict[ClientId, Hello]:
        """All but the odd ones; none as long as it is not clear which they are."""
        try:
            odd = odd_ones(self._config, there) if there else {}
        except NoMajority as error:
            text = str(error) if len(there) > 1 else ""
            if text and text != self._unclear:
                self._view.note(f"{text} Waiting for more.")
            self._unclear, self._odd = text, {}
            return {}
        self._unclear = ""
        for client in sorted(odd.keys() - self._odd.keys()):
            why = odd[client]
            self._say(client, f"is not admitted: {why}", f"{NOT_ADMITTED} ({client}: {why})")
        for client in sorted((self._odd.keys() - odd.keys()) & there.keys()):  # those who came since are like it
            self._say(client, "is admitted after all", ADMITTED)
        self._odd = odd
        return {client: hello for client, hello in there.items() if client not in odd}

    def _say(self, client: ClientId, here: str, there: str) -> None:
        """A line here and one at the client, so often at most: one that comes and goes must not fill the log."""
        self._times[client] += 1
        if self._times[client] <= _MOST_NOTICES:
            self._view.note(f"{client} {here}")
            self._transport.tell(client, there)

    @property
    def odd(self) -> set[ClientId]:
        """Those who were told that they are not admitted."""
        return set(self._odd)

    def others(self) -> str:
        """Who is there and does not fit, for the end of a wait."""
        return left_out("not admitted", self._odd, self._unclear)

    def notices(self, first: Hellos) -> list[str]:
        """What the run's report should say of how it began: who was left out, who alone has some classes."""
        said = [f"{client} is not admitted: {why}" for client, why in sorted(self._odd.items())]
        for client, what in alone(self._config, first).items():
            said.append(f"{client} {what}")
            self._view.note(said[-1])
            self._transport.tell(client, said[-1])
        return said[:_MOST_NOTICES]

"""A SuperLink, started here or elsewhere, and a run on it whose server part is this process."""

from __future__ import annotations

import hashlib
import os
import secrets
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.interrupts import pause, uninterrupted
from coterie.core.samples import ClientId
from coterie.deploy.certificates import gateways_in
from coterie.deploy.flower import link as flower_link
from coterie.deploy.flower.calls import WholeCalls
from coterie.deploy.flower.compat import (
    AcquireTaskRequest,
    ControlHttpClient,
    Fab,
    HeartbeatSender,
    HttpGrid,
    ProtobufClient,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    RegisterNodeRequest,
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    StartRunRequest,
    StopRunRequest,
    SubStatus,
    TaskIdentity,
    TaskType,
    build_fab_from_disk,
    fab_to_proto,
    make_task_heartbeat_fn_http,
    public_key_to_bytes,
    run_from_proto,
)

C = TypeVar("C", bound=ProtobufClient)
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""No telemetry, no look for updates, nothing installed at run time."""
_START_SECONDS = 120.0
_TASK_SECONDS = 30.0
_END_SECONDS = 5.0
_SILENCE_SECONDS = 20.0


@dataclass(frozen=True)
class ServerSecurity:
    """The server's certificate and its CA, and the public keys of the clients it accepts (none: all)."""

    ca: Path
    certificate: Path
    key: Path
    clients: Mapping[ClientId, Path]
    gateways: Mapping[ClientId, tuple[ClientId, ...]] = field(default_factory=dict)
    """Of those whose key is a gateway's, the names that its clients may bear."""

    def borne_by(self, key: ClientId) -> tuple[ClientId, ...]:
        """The names of the clients that the owner of this key may answer for."""
        return self.gateways.get(key, (key,))

    @classmethod
    def of(cls, folder: Path) -> ServerSecurity:
        """What `coterie certs` has put in a folder."""
        made = cls(
            ca=folder / "ca.pem",
            certificate=folder / "server.pem",
            key=folder / "server.key",
            clients={path.stem: path for path in sorted((folder / "keys").glob("*.pub"))},
            gateways=gateways_in(folder),
        )
        for path in (made.ca, made.certificate, made.key):
            if not path.is_file():
                raise CoterieError(f"There is no {path}; make certificates with `coterie certs {folder}`.")
        times = Counter(name for key in made.clients for name in made.borne_by(key))
        twice = sorted(name for name, number in times.items() if number > 1)
        if twice:
            raise CoterieError(f"In {folder / 'keys'} two keys bear the name {twice[0]}; remove one of them.")
        return made


class SuperLink:
    """A SuperLink that can be reached at `address` of this machine."""

    def __init__(
        self, address: str, ca: Path | None, process: subprocess.Popen[bytes] | None, log: Path | None, token: str = ""
    ) -> None:
        self.address, self.ca, self._process, self._log, self._token = address, ca, process, log, token

    def _as_operator(self, client: C) -> C:
        """Have a client show the token of the run (see `flower_link`) with every call, none of which is cut in two."""
        client._client.headers.update(self.shown)
        client._interceptors += (WholeCalls(),)
        return client

    @property
    def shown(self) -> dict[str, str]:
        """What a request carries that comes from the run's operator."""
        return {flower_link.TOKEN_HEADER: self._token} if self._token else {}

    @property
    def _root(self) -> bytes | None:
        return None if self.ca is None else self.ca.read_bytes()

    def check(self) -> None:
        """Raise if our SuperLink has died."""
        if self._process is not None and self._process.poll() is not None:
            raise Unfinished(f"The SuperLink has stopped; see {self._log}, then go on with coterie serve --resume.")

    def control(self) -> ControlHttpClient:
        """Its operators' part."""
        made = ControlHttpClient.from_server_address(
            self.address, self.ca is None, self._root, [RuntimeVersionHttpInterceptor(component_name="flwr")]
        )
        return self._as_operator(made)

    def register(self, security: ServerSecurity) -> dict[int, tuple[ClientId, ...]]:
        """Have it accept the keys of these clients; returned are their nodes, with the names that each may bear."""
        nodes = {}
        with self.control() as control:
            for name, path in security.clients.items():
                try:
                    key = public_key_to_bytes(load_ssh_public_key(path.read_bytes()))  # type: ignore[arg-type]
                except (OSError, ValueError) as error:
                    raise CoterieError(
                        f"{path} is not a public key ({error}); make one with `coterie certs`."
                    ) from error
                made = control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
                nodes[int(made.node_id)] = security.borne_by(name)
        return nodes

    @contextmanager
    def grid(self) -> Iterator[HttpGrid]:
        """Start a run whose server part is this process, and end it with it."""
        run = self._start_run()
        token = self._acquire(run)
        grid = HttpGrid(self.address, self.ca is None, self._root, token=token)
        grid._retry_invoker.max_time = _SILENCE_SECONDS  # Flower would try for ever
        client = self._as_operator(grid._runtime_client)
        heart = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heart.start()
        status = SubStatus.FAILED
        try:
            given = client.PullTaskInput(PullTaskInputRequest())
            TaskIdentity.task_id, TaskIdentity.run_id = given.task_id, given.run.run_id
            TaskIdentity.node_id = given.context.node_id
            grid.set_run(run_from_proto(given.run))
            yield grid
            status = SubStatus.COMPLETED
        finally:
            grid._retry_invoker.max_tries = 1  # nothing to wait for at the end
            # Before the run ends: its token ends with it, and Flower answers a refused heartbeat with a SIGINT to us.
            with suppress(RuntimeError):  # it stops by itself when the SuperLink does
                heart.stop()
            with suppress(httpx.HTTPError):  # the SuperLink may be gone, and the run with it
                client.PushTaskOutput(PushTaskOutputRequest(sub_status=status, details=""))
            grid.close()

    def _start_run(self) -> int:
        content = build_fab_from_disk(Path(__file__).parent / "app")
        fab = Fab(hashlib.sha256(content).hexdigest(), content, {})
        try:
            with self.control() as control:
                started = control.StartRun(StartRunRequest(fab=fab_to_proto(fab)))
        except httpx.HTTPError as error:
            raise CoterieError(f"The SuperLink at {self.address} takes no runs ({error}).") from error
        return int(started.run_id)

    def _acquire(self, run: int) -> str:
        """Take the run's server part, before any executor of the SuperLink's does."""
        made = RuntimeHttpClient.from_server_address(
            self.address, self.ca is None, self._root, [RuntimeVersionHttpInterceptor(component_name="SuperExec")]
        )
        client = self._as_operator(made)
        until = time.monotonic() + _TASK_SECONDS
        with client:
            while time.monotonic() < until:
                task = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.SERVER_APP]))
                if task.HasField("task") and task.task.run_id == run:
                    return str(task.token)
                pause(0.1)
        with self.control() as control:
            control.StopRun(StopRunRequest(run_id=run))
        raise CoterieError(
            f"Another process executes the runs of {self.address}; start it with --isolation process, or give "
            "coterie's app folder to `flwr run` (see docs/how-to-deploy.md)."
        )


@contextmanager
def own_superlink(host: str, port: int, security: ServerSecurity | None, log: Path, limit: int) -> Iterator[SuperLink]:
    """Start a SuperLink behind its filter of requests, and stop it at the end."""
    # as a file, so that the SuperLink need not load torch
    command = [sys.executable, "-P", flower_link.__file__, "--isolation", "process"]
    command += ["--host", host, "--port", str(port)]
    if security is None:
        command.append("--insecure")
    else:
        command += ["--ssl-ca-certfile", str(security.ca), "--ssl-certfile", str(security.certificate)]
        command += ["--ssl-keyfile", str(security.key)]
        command += ["--enable-supernode-auth"] if security.clients else []
    token = secrets.token_hex(32)  # in the memory of two processes of one user, and nowhere else
    environment = {**os.environ, **QUIET, flower_link.PARENT: str(os.getpid()), flower_link.LIMIT: str(limit)}
    environment[flower_link.TOKEN] = token
    with open(log, "ab") as file:
        # a session of its own: Ctrl-C is for the run, which then lets the SuperLink go
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
    ca = None if security is None else security.ca
    link = SuperLink(f"{_near(host)}:{port}", ca, process, log, token)
    try:
        _await(link, process, log, port)
        yield link
    finally:
        process.terminate()
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _near(host: str) -> str:
    """How this machine reaches a server that listens at `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)


def _await(link: SuperLink, process: subprocess.Popen[bytes], log: Path, port: int) -> None:
    scheme, verify = ("http", True) if link.ca is None else ("https", str(link.ca))
    until = time.monotonic() + _START_SECONDS
    with httpx.Client(verify=verify) as client:
        while time.monotonic() < until:
            if process.poll() is not None:
                raise CoterieError(f"The SuperLink did not start at port {port}; it said: {_last_line(log)}")
            try:
                # with the token: another SuperLink at that address does not know it
                with uninterrupted():
                    health = client.get(f"{scheme}://{link.address}/health", headers=link.shown, timeout=1.0)
                if health.status_code < 400 and process.poll() is None:
                    return
            except httpx.HTTPError:
                pass
            pause(0.1)
    raise CoterieError(f"The SuperLink did not start within {_START_SECONDS:g} s; it said: {_last_line(log)}")


def _last_line(log: Path) -> str:
    """Quoted, because a run that does not start leaves no log behind."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "nothing"

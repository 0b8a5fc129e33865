"""Python processes without the seconds that each spends on importing torch: they are forked from one that has.

`Process` is started with the same words as `subprocess.Popen`: `python -m module ...`, `python script.py ...` or
`python -c code ...`. It is a process of its own, which can be killed, frozen and limited, and it ends as a spawned one
does: this module's last line runs it, so that the interpreter itself handles exceptions, `atexit` and the exit code.

A test process has one fork server of a kind. It starts with the first request and never has a second thread, because
what other threads hold at a fork is held for ever. It ends, and ends what it has forked, when the test process is gone.

Where it matters what of coterie is imported, a process is `fresh`: torch is there already, and nothing of coterie.

What it cannot do, so that these keep `subprocess`:

* tests of whether torch is imported, and when;
* environment variables that Python or a library reads when it starts or is imported (`_AT_START`): another value than
  the test process had is refused. COTERIE_DATA, COTERIE_KERNEL, COLUMNS, PYTHONPATH and others count as usual;
* limits of resources, the umask and PYTHONHASHSEED, which are the test process's, and `_NO_THREADS`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

_AT_START = ("PYTHON", "OMP_", "MKL_", "LD_", "MALLOC_", "TERMINAL_WIDTH")
_EXCEPT = ("PYTHONPATH",)
_NO_THREADS = {"OPENBLAS_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""OpenBLAS and Arrow start threads when they are imported, unless they are told not to."""
_MORE = ("httpcore", "plotly.offline", "pyarrow.parquet")
"""What coterie imports when it is needed, and often is."""
_LENGTH = struct.Struct("!I")


class Process:
    """A forked Python process, to be used as one of `subprocess.Popen`; its output goes to files."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        stdout: IO[Any] | int = subprocess.DEVNULL,
        stderr: IO[Any] | int = subprocess.DEVNULL,
        fresh: bool = False,
    ) -> None:
        if arguments[0] != sys.executable:
            raise ValueError(f"{arguments[0]} is not the Python of the tests, so it cannot be forked")
        self.args = list(arguments)
        self.returncode: int | None = None
        environment = dict(os.environ if env is None else env)
        _refuse_what_comes_too_late(environment)
        request = {"arguments": self.args[1:], "cwd": os.fspath(cwd or os.getcwd()), "env": environment}
        self._status, theirs = socket.socketpair()
        with theirs, open(os.devnull, "r+b") as nothing:
            out = _descriptor(stdout, nothing)
            files = [nothing.fileno(), out, out if stderr == subprocess.STDOUT else _descriptor(stderr, nothing)]
            (_torch if fresh else _server).ask(json.dumps(request).encode(), [*files, theirs.fileno()])
        self._lines = self._status.makefile("rb")
        self.pid = self._next()

    def _next(self) -> int:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("the fork server is gone")
        return int(line)

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        return code

    def _ended(self, seconds: float | None) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], seconds)[0]:
            self.returncode = self._next()
            self._lines.close()
            self._status.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    arguments: Sequence[str],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float | None = None,
    fresh: bool = False,
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run(..., capture_output=True, text=True)`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = Process(arguments, cwd=cwd, env=env, stdout=out, stderr=err, fresh=fresh)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        texts = [(file.seek(0), file.read().decode())[1] for file in (out, err)]
    return subprocess.CompletedProcess(list(arguments), code, *texts)


def close() -> None:
    """End the fork servers of this process and all that they have forked."""
    _server.close()
    _torch.close()


def _descriptor(file: IO[Any] | int, nothing: IO[bytes]) -> int:
    if isinstance(file, int):
        return nothing.fileno() if file == subprocess.DEVNULL else file
    return file.fileno()


def _refuse_what_comes_too_late(wanted: Mapping[str, str]) -> None:
    present = _server.environment
    for name in sorted({*wanted, *present}):
        if name.startswith(_AT_START) and name not in _EXCEPT and wanted.get(name) != present.get(name):
            raise ValueError(f"{name} is read when Python starts; a forked process would not see {wanted.get(name)!r}")


class _Server:
    """The fork server as the test process sees it."""

    def __init__(self, package: str = "coterie") -> None:
        self.environment = dict(os.environ)
        self._package = package
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._door: socket.socket | None = None

    def ask(self, request: bytes, files: list[int]) -> None:
        with self._lock:
            if self._door is None:
                self._door, theirs = socket.socketpair()
                with theirs:
                    command = [sys.executable, __file__, str(theirs.fileno()), self._package]
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        env={**self.environment, **_NO_THREADS},
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C is for the tests, which then let it go
                    )
            socket.send_fds(self._door, [_LENGTH.pack(len(request))], files)
            self._door.sendall(request)

    def close(self) -> None:
        with self._lock:
            if self._door is not None and self._process is not None:
                self._door.close()
                self._process.wait()
                self._door = self._process = None


_server, _torch = _Server(), _Server("torch")


# ---- from here on: in the fork server


def _preload(package: str) -> None:
    """Import all that commands import, or torch alone."""
    top = importlib.import_module(package)
    for module in () if package == "torch" else pkgutil.walk_packages(top.__path__, f"{package}."):
        # not what is run as a program, and not libraries of C
        if not module.name.endswith("__main__") and ".kernel._" not in module.name:
            importlib.import_module(module.name)
    if package == "coterie":
        for name in _MORE:
            importlib.import_module(name)
    if threading.active_count() > 1 or len(_threads()) > 1:
        raise RuntimeError("an import has started a thread: nothing can be forked safely")
    gc.collect()
    gc.freeze()  # forked processes share these pages for as long as nobody writes to them


def _threads() -> list[str]:
    return os.listdir("/proc/self/task") if os.path.isdir("/proc/self/task") else ["unknown"]


def _serve(door: socket.socket) -> dict[str, Any]:
    """Fork for each request, and say how each process has ended; returns in the forked processes alone."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: dict[int, socket.socket] = {}
    while True:
        ready = select.select([door, woken], [], [])[0]
        if woken in ready:
            woken.recv(1 << 10)
            _report_ends(running)
        if door not in ready:
            continue
        head, files, _, _ = socket.recv_fds(door, _LENGTH.size, 4)
        if not head:  # the test process is gone
            _end(running)
        request: dict[str, Any] = json.loads(_exactly(door, _LENGTH.unpack(head)[0]))
        status = socket.socket(fileno=files.pop())
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (door, woken, wakes, status, *running.values()):
                end.close()
            _put_in_place(files)
            return request
        running[pid] = status
        status.sendall(b"%d\n" % pid)
        _close(files)


def _end(running: Collection[int]) -> NoReturn:
    for pid in running:
        os.kill(pid, signal.SIGKILL)
    for pid in running:
        os.waitpid(pid, 0)
    os._exit(0)


def _put_in_place(files: list[int]) -> None:
    """Let the descriptors 0, 1 and 2 be these files."""
    for number, file in enumerate(files):
        os.dup2(file, number)
    _close(files)


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)


def _exactly(door: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += door.recv(length - len(data))
    return data


def _report_ends(running: dict[int, socket.socket]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        with running.pop(pid) as told:
            try:
                told.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))
            except OSError:  # nobody waits for it any more
                continue


def _become(request: dict[str, Any], paths: list[str]) -> None:
    """Do what Python does with these arguments when it starts."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()  # `random` does so by itself
    what, *rest = request["arguments"]
    added = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    first = {"-m": os.getcwd(), "-c": ""}.get(what, str(Path(what).resolve().parent))
    sys.path[:] = [first, *map(os.path.abspath, added), *paths]
    if what == "-m":
        sys.argv[:] = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif what == "-c":
        sys.argv[:] = ["-c", *rest[1:]]
        module = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(rest[0], "<string>", "exec"), module.__dict__)
    else:
        sys.argv[:] = [what, *rest]
        runpy.run_path(what, run_name="__main__")


if __name__ == "__main__":
    _own = [os.path.abspath(path) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    _paths = [path for path in sys.path[1:] if path not in _own]
    del sys.path[0]  # the folder of the tests
    _preload(sys.argv[2])
    _become(_serve(socket.socket(fileno=int(sys.argv[1]))), _paths)

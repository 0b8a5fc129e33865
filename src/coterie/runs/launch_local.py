"""A network of peers on one machine, for a first look: every peer a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from coterie.core.errors import CoterieError, Unfinished
from coterie.core.interrupts import pause
from coterie.core.measures import Measure, measure_of
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.deploy.boundary import check_name
from coterie.deploy.ports import check_free
from coterie.deploy.zenoh.peer import PeerPace, PeerState
from coterie.methods import chosen_method
from coterie.methods.p2p.base import PeerMethod
from coterie.methods.p2p.communities import communities
from coterie.methods.p2p.network_state import edges_of
from coterie.runs.config import RunConfig, from_tables, read_tables
from coterie.runs.experiment import defaults_of, population_of
from coterie.runs.folder import RunFolder, RunKind
from coterie.runs.peer import PeerOptions, peer_method
from coterie.runs.records import METRICS, RESULT_FILE, read_metrics
from coterie.runs.result import Result
from coterie.runs.standing import Standing, Values, known, mean_known
from coterie.runs.view import View, Views

_LOOK_SECONDS = 0.2
_SEEDS = 2
_LINES = 10
_ADDED = ("bytes_down", "bytes_up", "bytes_evaluation", "failures")


def run_local(
    config_file: Path,
    number: int,
    out: Path,
    port: int,
    *,
    free: bool,
    tls: bool,
    seconds: float = 10.0,
    view: View | None = None,
) -> Result:
    """Start the peers, wait for them all, and put their folders together; `peer_results` reads those one by one."""
    config = from_tables(read_tables(config_file))
    known = list(population_of(config.scenario, config.seed, config.task).ids)
    if not 2 <= number <= len(known):
        raise CoterieError(f"--local {number}: give at least 2, and no more than the scenario's {len(known)} clients.")
    peer_method(config)
    PeerOptions(number, pace=PeerPace(not free, seconds))
    for index in range(number):
        check_free("127.0.0.1", port + index, "--port")
    names = [check_name(name, "The client") for name in known[:number]]
    folder, views = RunFolder.create(out, config.to_toml(), RunKind.NETWORK), Views(view)
    with _starting(folder, names):
        _run(config, config_file, names, out, port, free=free, tls=tls, seconds=seconds, note=views.note)
    return together(config, folder, names, views)


@contextmanager
def _starting(folder: RunFolder, names: Sequence[ClientId]) -> Iterator[None]:
    """Nothing goes on with a network, so one that ends before its first round is removed, for another try."""
    try:
        yield
    except BaseException:
        if not any(read_metrics(folder.path / "peers" / name) for name in names):
            folder.discard()
        raise


def _run(
    config: RunConfig,
    config_file: Path,
    names: Sequence[ClientId],
    out: Path,
    port: int,
    *,
    free: bool,
    tls: bool,
    seconds: float,
    note: Note,
) -> None:
    number = len(names)
    if tls:
        from coterie.deploy.certificates import make_certificates

        make_certificates(out / "certs", names, ["127.0.0.1"])
    seeds = ",".join(f"127.0.0.1:{port + index}" for index in range(min(_SEEDS, number)))
    running: dict[ClientId, subprocess.Popen[bytes]] = {}
    try:
        for index, name in enumerate(names):
            command = [
                sys.executable,
                "-m",
                "coterie",
                "peer",
                "--config",
                str(config_file),
                "--data",
                str(config_file),
            ]
            command += ["--name", name, "--listen", f"127.0.0.1:{port + index}", "--seeds", seeds]
            command += ["--peers", str(number), "--out", str(out / "peers" / name), *(["--free"] if free else [])]
            command += ["--timeout", str(seconds)]
            command += ["--certs", str(out / "certs" / "clients" / name)] if tls else []
            with open(out / f"peer-{name}.log", "wb") as log:
                running[name] = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        note(f"{number} peers at 127.0.0.1:{port} to {port + number - 1}; each writes {out}/peer-NAME.log")
        _await(config, out, running, note)
    finally:
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()


def _await(config: RunConfig, out: Path, running: dict[ClientId, subprocess.Popen[bytes]], note: Note) -> None:
    said, alive, every = 0, True, max(1, config.rounds // _LINES)
    while alive:
        alive = any(process.poll() is None for process in running.values())  # then one more look: the last round counts
        rounds = [len(read_metrics(out / "peers" / name)) for name in running]
        if min(rounds) // every > said // every or min(rounds) == config.rounds > said:
            said = min(rounds)
            note(f"all peers have finished round {said} of {config.rounds}")
        if alive:
            pause(_LOOK_SECONDS)
    lost = [name for name, process in running.items() if process.returncode != 0]
    if len(lost) == len(running):
        last = (out / f"peer-{lost[0]}.log").read_text(errors="replace").strip().splitlines()
        raise Unfinished(f"No peer came to the end; {lost[0]} said: {last[-1] if last else 'nothing'}")
    for name in lost:
        note(f"{name} did not come to the end; see {out}/peer-{name}.log")


def peer_results(out: Path, names: Sequence[ClientId]) -> dict[ClientId, dict[str, Any]]:
    """The result of every peer that has come to the end."""
    files = {name: out / "peers" / name / RESULT_FILE for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def together(config: RunConfig, folder: RunFolder, names: Sequence[ClientId], view: Views) -> Result:
    """The result of a whole network, from the folders of its peers."""
    results = peer_results(folder.path, names)
    ended = list(results)
    standing = _together([results[name] for name in ended])
    clusters = _communities(config, folder.path, ended)
    rows = [read_metrics(folder.path / "peers" / name) for name in ended]
    folder.log_event("start", method=config.method, scenario=config.subject, rounds=config.rounds, seed=config.seed)
    for moment in zip(*rows, strict=False):
        row = _mean_row(moment, standing.measure)
        folder.log_event("round", **row, log={})
        folder.log_metrics(row)
    result = Result(
        method=config.method,
        scenario=config.subject,
        seed=config.seed,
        rounds=config.rounds,
        clients=len(names),
        **standing.result(None),
        clusters=clusters,
        n_clusters=None if clusters is None else len(set(clusters)),
        ari=None,
        **{key: sum(result[key] for result in results.values()) for key in _ADDED},
        seconds=max(result["seconds"] for result in results.values()),
        client_ids=ended,
        truth=None,
        engine="peers over zenoh",
        title=chosen_method(config.method).title,
    )
    folder.log_event("end", metric=result.metric, score=result.score, seconds=result.seconds)
    folder.write(RESULT_FILE, result.to_json().encode())
    view.finished(result, folder.path)
    return result


def _communities(config: RunConfig, path: Path, names: Sequence[ClientId]) -> list[int] | None:
    """Groups of peers that have chosen each other as neighbours."""
    method = config.build_method(defaults_of(config))
    if not isinstance(method, PeerMethod) or not method.finds_groups:
        return None
    lists = []
    for name in names:
        _, state, _ = RunFolder(path / "peers" / name).checkpoint.load(method.name, PeerState)
        lists.append(method.neighbours(method.unpack_node(state.node))[0])
    from torch.nn.utils.rnn import pad_sequence

    rows = pad_sequence(lists, batch_first=True, padding_value=-1)
    return [int(label) for label in communities(*edges_of(names, rows), len(names))]


def _together(results: Sequence[Mapping[str, Any]]) -> Standing:
    """How all peers stand, from the results of the single ones."""

    def column(name: str) -> Values:
        return [value for result in results for value in result[name]]

    return Standing(
        results[0]["task"],
        measure_of(results[0]),
        column("per_client_accuracy"),
        column("per_client_score"),
        {
            name: [result["per_client_metrics"][name][0] for result in results]
            for name in results[0]["per_client_metrics"]
        },
        column("per_client_floor"),
        column("per_client_finetuned_accuracy"),
        column("per_client_finetuned_score"),
    )


def _mean_row(moment: Sequence[dict[str, Any]], measure: Measure) -> dict[str, Any]:
    """One round of all peers: accuracies averaged, bytes added up."""
    row: dict[str, Any] = dict.fromkeys(METRICS)
    row["round"] = int(moment[0]["round"])
    for name in ("accuracy", "score"):
        row[name] = mean_known([one.get(name) for one in moment])
    row["worst_accuracy"] = min(known([one["accuracy"] for one in moment]), default=None)
    row["worst_score"] = measure.worst(known([one.get("score") for one in moment]))
    losses = [one["loss"] for one in moment if one["loss"] is not None]
    row["loss"] = sum(losses) / len(losses) if losses else None
    for key in _ADDED:
        row[key] = int(sum(one[key] or 0 for one in moment))
    row["seconds"] = max(one["seconds"] or 0.0 for one in moment)
    return row

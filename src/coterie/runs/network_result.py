"""The result of several peers, from the folders in which each of them has written its own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.core.measures import Measure, measure_of
from coterie.core.notes import Note
from coterie.core.samples import ClientId
from coterie.deploy.zenoh.peer import PeerState
from coterie.methods import chosen_method
from coterie.methods.p2p.base import PeerMethod
from coterie.methods.p2p.communities import communities
from coterie.methods.p2p.network_state import edges_of
from coterie.runs.config import RunConfig
from coterie.runs.experiment import defaults_of
from coterie.runs.folder import RunFolder, home_of
from coterie.runs.records import METRICS, RESULT_FILE, read_metrics
from coterie.runs.result import Result
from coterie.runs.standing import Standing, Values, known, mean_known
from coterie.runs.view import Views

_ADDED = ("bytes_down", "bytes_up", "bytes_evaluation", "failures")
_LINES = 10


class Milestones:
    """Says now and then how far all of several peers have come."""

    def __init__(self, rounds: int, note: Note) -> None:
        self._rounds, self._note, self._said = rounds, note, 0
        self._every = max(1, rounds // _LINES)

    def reached(self, round: int) -> None:
        """All have finished this round."""
        if round // self._every > self._said // self._every or round == self._rounds > self._said:
            self._said = round
            self._note(f"all peers have finished round {round} of {self._rounds}")


def peer_results(out: Path, names: Sequence[ClientId]) -> dict[ClientId, dict[str, Any]]:
    """The result of every peer that has come to the end."""
    files = {name: home_of(out, name) / RESULT_FILE for name in names}
    return {name: json.loads(file.read_text()) for name, file in files.items() if file.is_file()}


def together(config: RunConfig, folder: RunFolder, names: Sequence[ClientId], view: Views) -> Result:
    """The result of a whole network, from the folders of its peers."""
    results = peer_results(folder.path, names)
    ended = list(results)
    standing = _together([results[name] for name in ended])
    clusters = _communities(config, folder.path, ended)
    rows = [read_metrics(home_of(folder.path, name)) for name in ended]
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
        _, state, _ = RunFolder(home_of(path, name)).checkpoint.load(method.name, PeerState)
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

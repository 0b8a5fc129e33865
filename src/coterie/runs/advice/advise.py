"""Train briefly what must be compared, judge it on held-out data, and say what to run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn

from coterie.core.errors import CoterieError
from coterie.core.losses import LossChoice, LossFn
from coterie.core.notes import Note, silent
from coterie.core.rng import rng
from coterie.core.samples import ClientId, Population
from coterie.core.task import Task
from coterie.data.schema import Schema
from coterie.methods import method_named
from coterie.methods.auto.messages import Groups
from coterie.methods.base import ServerMethod
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedcg import FedCG
from coterie.methods.given_groups import GivenGroups
from coterie.runs.advice.answer import Advice, Candidate
from coterie.runs.advice.differences import differences, other_names
from coterie.runs.advice.held_out import HeldOut
from coterie.runs.advice.paired import Interval, amount_of, paired_gain
from coterie.runs.advice.remarks import asked_for_more, remarks_on
from coterie.runs.advice.trial import CLOSE, Trial, ahead_of_nothing, first_run, known_scores, known_settings
from coterie.runs.options import RunOptions
from coterie.runs.rates import rated, tested_rate, with_scenario_rate
from coterie.runs.result import Result
from coterie.simulation.simulator import EngineOptions

_MOST_CLIENTS = 100
"""With more clients so many of them, drawn at random, take part in the trial."""
_VISITS = 600_000
"""Samples that a method trains on in the whole trial, about; a fixed number, so that advice is the same everywhere."""
_ROUNDS = (10, 20)
"""The fewest and the most rounds."""
LOCAL, FEDAVG, TUNED, GROUPS, GROUPS_TUNED, FEDCG, AUTO = (
    *("local training", "FedAvg", "FedAvg, fine-tuned", "a model per group"),
    *("a model per group, fine-tuned", "FedCG", "auto"),
)
_TUNED_SETTINGS = {"personalise": "finetune"}
_ABLE = (LOCAL, FEDAVG, TUNED, FEDCG, AUTO)
"""What can be recommended; the models per group show what groups are worth, and auto is the way to have them."""
_PLAIN = (FEDAVG, FEDCG, AUTO)
"""What does not adapt to a client's own labels where others will be asked for."""
_WHY_FEDCG = (
    "Groups with the same inputs learn features together with FedCG; its clients tell how many samples of each class "
    "they have and what these have in the mean (docs/privacy.md)."
)


def advise(
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    training: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    loss: LossChoice | LossFn = "auto",
    engine: EngineOptions | None = None,
    note: Note = silent,
    command: Callable[[str, Mapping[str, Any]], str] | None = None,
) -> Advice:
    """Whether there are groups among the clients, who gains by what, and what to run.

    `training` holds settings of local training (lr, epochs, batch, ...). A quarter of every client's training part (or
    its validation part) is kept for judging; the test parts are not looked at. `command` says how a method with its
    settings is run, for the last line of the advice.
    """
    given, settings = options or RunOptions(), dict(training or {})
    ids = _some(population.ids, given.seed)
    if len(ids) < 2:
        raise CoterieError("Advice needs at least two clients: groups are something among several.")
    held = HeldOut(population, ids, given.seed)
    samples = sum(len(held.client(client).train) for client in ids)
    rounds, settings = _length(samples, settings)
    plain = FedAvg(**known_settings(FedAvg, settings))

    def test() -> float:
        minimised = given.loss if loss == "auto" else loss
        learnt = Task.of(model, held, task=given.task, loss=minimised, metric=given.metric, dtype=given.torch_dtype)
        return tested_rate(learnt, held, plain.opt, given.seed, note)

    of_scenario = plain.lr is None and with_scenario_rate(plain, population).lr is not None
    plain = rated(plain, population, test)
    if plain.lr is not None:
        settings["lr"] = plain.lr
    short = dataclasses.replace(given, rounds=rounds, evaluate_every=rounds)
    trial = Trial(held, model, settings, short, loss, engine, note)
    trial, first, found_rate = first_run(trial, test if of_scenario else None)
    runs = {FEDAVG: first, LOCAL: trial.run(method_named("local")), AUTO: trial.run(method_named("auto"))}
    found = _groups(runs[AUTO])
    if len(set(found.values())) > 1:
        runs[GROUPS] = trial.run(GivenGroups, groups=found)
    proposed = len(set(found.values()))
    own = {FEDCG: {"domains": proposed}}
    state = runs[AUTO].state
    assert isinstance(state, Groups)
    clear = state.clear
    evidence = _gain_by_groups(runs, tuned=not clear)
    count = proposed if evidence.sure or (clear and evidence.mean > 0) else 1
    schema: Schema | None = getattr(population, "schema", None)
    apart = differences(held, found, _input_names(schema) if schema else ()) if count > 1 else None
    named = other_names(state, _numbers(runs[AUTO]) if count > 1 else {}, schema.class_names if schema else ())
    if apart is not None and apart.alike_inputs and not named.joined:
        runs |= trial.tried(FEDCG, FedCG, **own[FEDCG])
    choices = _choices(runs, own, found_rate)
    able = _PLAIN if asked_for_more(held) else _ABLE
    best = _recommended(choices, able, in_groups=proposed > 1 and evidence.high > 0, lower=first.lower_is_better)
    return Advice(
        task=first.task,
        metric=first.metric,
        lower_is_better=first.lower_is_better,
        floor=first.floor,
        groups=count,
        evidence=evidence,
        verdict=_verdict(count, proposed, evidence, first.metric, tuned=not clear),
        recommended=best,
        command=(command or _in_python)(best.method, best.settings),
        choices=choices,
        clients=found if count > 1 else dict.fromkeys(found, 0),
        apart="" if apart is None else named.sentence(apart),
        remarks=(*named.remarks, *remarks_on(held), *_remarks_on_trial(best, first, plain.lr, found_rate)),
        rounds=rounds,
        looked_at=len(ids),
        registered=len(population.ids),
    )


def _input_names(schema: Schema) -> list[str]:
    """The name of every input of a table: that of its column, or of a category of it."""
    names = []
    for column in schema.columns:
        names += [f"{column.name} = {each}" for each in column.categories] or [column.name]
    return names


def _some(ids: Sequence[ClientId], seed: int) -> list[ClientId]:
    if len(ids) <= _MOST_CLIENTS:
        return list(ids)
    drawn = rng(seed, "advice clients").choice(len(ids), _MOST_CLIENTS, replace=False)
    return [ids[place] for place in sorted(drawn)]


def _length(samples: int, settings: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
    """Rounds and local epochs that train on about `_VISITS` samples: fewer epochs before too few rounds."""
    fewest, most = _ROUNDS
    epochs = int(settings.get("epochs", ServerMethod.__dataclass_fields__["epochs"].default))
    epochs = max(1, min(epochs, _VISITS // max(samples * fewest, 1)))
    rounds = max(fewest, min(most, _VISITS // max(samples * epochs, 1)))
    return rounds, {**settings, "epochs": epochs}


def _groups(result: Result) -> dict[ClientId, int]:
    """The groups that a run ended with, numbered from 0 without gaps."""
    clusters, numbers = result.clusters or [0] * len(result.client_ids), _numbers(result)
    return {client: numbers[cluster] for client, cluster in zip(result.client_ids, clusters, strict=True)}


def _numbers(result: Result) -> dict[int, int]:
    """The numbers that the advice gives the groups of a run."""
    return {cluster: place for place, cluster in enumerate(sorted(set(result.clusters or [0])))}


def _choices(
    runs: Mapping[str, Result], own: Mapping[str, Mapping[str, Any]], common: Mapping[str, Any]
) -> tuple[Candidate, ...]:
    """Every run, as it is and fine-tuned, with what clients gain by it; settings of its own, and those of all."""
    found: dict[str, tuple[Result, Mapping[str, Any], dict[str, float]]] = {}
    tuned = {FEDAVG: TUNED, GROUPS: GROUPS_TUNED}
    for name, result in runs.items():
        found[name] = result, own.get(name, {}), known_scores(result, result.per_client_score)
        if name in tuned and result.per_client_finetuned_score:
            found[tuned[name]] = result, _TUNED_SETTINGS, known_scores(result, result.per_client_finetuned_score)
    lower = runs[FEDAVG].lower_is_better
    made = []
    for name in (each for each in (LOCAL, FEDAVG, TUNED, GROUPS, GROUPS_TUNED, FEDCG, AUTO) if each in found):
        result, settings, scores = found[name]
        made.append(
            Candidate(
                name=name,
                method=result.method,
                settings={**settings, **common},
                score=sum(scores.values()) / max(len(scores), 1),
                over_local=paired_gain(scores, found[LOCAL][2], lower=lower),
                over_fedavg=paired_gain(scores, found[FEDAVG][2], lower=lower),
                bytes=result.bytes_down + result.bytes_up,
                seconds=result.seconds,
                per_client=scores,
            )
        )
    return tuple(made)


def _gain_by_groups(runs: Mapping[str, Result], *, tuned: bool) -> Interval:
    """What clients gain if each trains with its group instead of with all; nothing where no groups were proposed.

    Groups that are not clear must gain something when all are fine-tuned, too: where everybody has a way of their own,
    as writers have, parts do better than the whole, and fine-tuning does as well as the parts.
    """
    if GROUPS not in runs:
        return Interval(0.0, 0.0, 0.0)
    pair = runs[GROUPS], runs[FEDAVG]
    if tuned and all(result.per_client_finetuned_score for result in pair):
        by_group, by_all = (known_scores(result, result.per_client_finetuned_score) for result in pair)
    else:
        by_group, by_all = (known_scores(result, result.per_client_score) for result in pair)
    return paired_gain(by_group, by_all, lower=runs[FEDAVG].lower_is_better)


def _recommended(choices: Sequence[Candidate], names: Sequence[str], *, in_groups: bool, lower: bool) -> Candidate:
    """auto where there may be groups, else FedAvg; something else only if the trial is sure of it.

    A trial is short, and what trains together goes on to improve when local models have long been finished: what
    looks like a tie or a small lead of these after some rounds was wrong by 15 points in full runs of PACS. FedCG is
    tried where groups have the same inputs and do not only name them otherwise, for which auto has an answer of its
    own. There it need not lead here.
    """
    able = {choice.name: choice for choice in choices if choice.name in names}
    usual = able[AUTO if in_groups else FEDAVG]
    close = CLOSE * (abs(usual.score) if lower else 1.0)
    shared = able.get(FEDCG) if in_groups else None
    if shared and paired_gain(shared.per_client, usual.per_client, lower=lower).mean >= -close:
        usual = shared
    better = [choice for choice in able.values() if choice is not usual and _surely(choice, usual, close, lower=lower)]
    if not better:
        return usual
    best = min(choice.score for choice in better) if lower else max(choice.score for choice in better)
    return next(choice for choice in better if abs(choice.score - best) <= close)


def _surely(choice: Candidate, usual: Candidate, close: float, *, lower: bool) -> bool:
    """Whether local training is surely as good as the usual choice, or something else surely worth more."""
    gain = paired_gain(choice.per_client, usual.per_client, lower=lower)
    return gain.low >= -close if choice.name == LOCAL else gain.sure and gain.mean > close


def _remarks_on_trial(best: Candidate, first: Result, rate: object, found: Mapping[str, float]) -> list[str]:
    """What a user should know of the choice that is recommended, and of the rate it was tried with."""
    remarks = [_WHY_FEDCG] if best.name == FEDCG else []
    if found:
        remarks.append(
            f"At the scenario's rate, lr = {rate}, hardly anything was learnt in this short trial. A test finds lr = "
            f"{found['lr']:g}; everything here was tried with it, and the command sets it."
        )
    if not ahead_of_nothing(best.score, first) > CLOSE:
        remarks.append(
            "Nothing was learnt in this short trial: what is recommended is no better than a constant answer. So it "
            "says little about the choices; set lr, more epochs or another network, and ask again."
        )
    return remarks


def _verdict(groups: int, proposed: int, gain: Interval, metric: str, *, tuned: bool) -> str:
    amount = amount_of(gain, metric) + (", all fine-tuned" if tuned else "")
    if groups > 1 and not gain.sure:
        return (
            f"There are {groups} groups: in either half of their data, members pull a model the same way and others do "
            f"not. What clients gain by them in this short trial may be chance: {amount}."
        )
    if groups > 1:
        return (
            f"There are {groups} groups. On held-out data clients gain {amount}{',' if tuned else ''} if each trains "
            "with its group instead of with everybody."
        )
    if proposed > 1:
        return f"No sure groups: {proposed} were proposed, but what they gain on held-out data may be chance: {amount}."
    return "No evidence of groups: no partition of the clients did better on held-out data than all together."


def _in_python(method: str, settings: Mapping[str, Any]) -> str:
    given = "".join(f", {key}={value!r}" for key, value in settings.items())
    return f'coterie.run(coterie.method("{method}"{given}), population, model)'

"""The advice of `coterie advise`: in the terminal, and as a page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from coterie.core.files import write_whole, writing
from coterie.core.losses import LossChoice, LossFn
from coterie.core.notes import Note, silent
from coterie.core.samples import Population
from coterie.core.targets import TaskName
from coterie.core.terminal import harmless
from coterie.report.fitted import FILE_WIDTH, fitted_table
from coterie.report.formatting import duration, human_bytes, plural
from coterie.report.page import Page, card, painted, paragraphs, table
from coterie.runs.advice import Advice, Interval
from coterie.runs.advice import advise as trial
from coterie.runs.advice.paired import amount_of
from coterie.runs.options import RunOptions

ADVICE_FILE, PAGE_FILE = "advice.json", "advice.html"
_MOST_NAMED = 12
_MORE = "Which method suits which situation: docs/which-method.md; of one of them: coterie list METHOD."


def advise(
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    seed: int = 0,
    out: Path | str | None = None,
    task: TaskName = "auto",
    loss: LossChoice | LossFn = "auto",
    note: Note = silent,
    **training: Any,
) -> Advice:
    """Whether there are groups among the clients, who gains by what, and what to run; `print` shows it in words.

    `training` holds settings of local training (lr, epochs, batch, ...). With `out`, `advice.json` and a page are
    written to that folder. `note` is told what is being tried.
    """
    found = trial(population, model, training=training, options=RunOptions(seed=seed, task=task), loss=loss, note=note)
    if out is not None:
        write_advice(found, Path(out))
    return found


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write `advice.json` and the page into a folder; the path of the page."""
    with writing(folder / ADVICE_FILE, then="ask for the advice again"):
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(folder / ADVICE_FILE, advice.to_json().encode())
    return _page(advice).write(folder / PAGE_FILE)


def print_advice(advice: Advice) -> None:
    """The advice in plain words, and what every choice gained."""
    out = Console()
    wide = out if out.is_terminal else Console(file=out.file, width=FILE_WIDTH, no_color=True)

    def say(text: str, style: str = "") -> None:
        wide.print(harmless(text), style=style or None, markup=False, highlight=False)

    say(advice.verdict, "bold")
    if advice.groups > 1:
        for number, names in sorted(_members(advice).items()):
            say(f"  group {number}, {plural(len(names), 'client')}: {_few(names)}")
        say(advice.apart)
    for remark in advice.remarks:
        say(remark)
    if advice.floor is not None:
        say(f"A constant answer reaches {_score(advice, advice.floor)}.")
    rows = advice.choices
    columns = {
        "choice": [("→ " if choice is advice.recommended else "  ") + choice.name for choice in rows],
        advice.metric: [_score(advice, choice.score) for choice in rows],
        "over local": [_interval(advice, choice.over_local) for choice in rows],
        "over FedAvg": [_interval(advice, choice.over_fedavg) for choice in rows],
        "sent": [human_bytes(choice.bytes) for choice in rows],
        "time": [duration(choice.seconds) for choice in rows],
    }
    styles = ["bold" if choice is advice.recommended else "" for choice in rows]
    wide.print(fitted_table(wide, "", columns, styles, ("time", "sent", "over local")))
    say(_reason(advice))
    say(f"Run: {advice.command}", "bold")
    say(_MORE)


def _page(advice: Advice) -> Page:
    best = advice.recommended
    page = Page(
        title="Advice · coterie",
        eyebrow="coterie · advice",
        headline=advice.verdict,
        meta=f"{_looked_at(advice)} · {plural(advice.rounds, 'round')} each · judged on held-out data, never on tests",
    )
    page.tiles(
        [
            ("groups", str(advice.groups), "found on held-out data" if advice.groups > 1 else "no evidence of more"),
            ("run", best.method, ", ".join(f"{k} = {v}" for k, v in best.settings.items()) or "as it is"),
            (advice.metric, _score(advice, best.score), "mean over clients, held-out data"),
            ("over FedAvg", _gain(advice, best.over_fedavg.mean), _interval(advice, best.over_fedavg)),
            ("over local", _gain(advice, best.over_local.mean), _interval(advice, best.over_local)),
        ]
    )
    words = [advice.verdict, advice.apart, *advice.remarks, _reason(advice), f"Run: `{advice.command}`", _MORE]
    page.section("In plain words", [card("What to do", paragraphs([text for text in words if text]), wide=True)])
    head = ["choice", advice.metric, "over local (95 %)", "over FedAvg (95 %)", "sent", "time"]
    rows = [
        [
            choice.name + (" (recommended)" if choice is best else ""),
            _score(advice, choice.score),
            f"{_gain(advice, choice.over_local.mean)} ({_interval(advice, choice.over_local)})",
            f"{_gain(advice, choice.over_fedavg.mean)} ({_interval(advice, choice.over_fedavg)})",
            human_bytes(choice.bytes),
            duration(choice.seconds),
        ]
        for choice in advice.choices
    ]
    note = "Gains are paired: the same client's score with one choice less that with the other, mean over clients."
    page.section("Choices", [card("What each choice gains", table(head, rows), note, wide=True)])
    page.section("Clients", [card("Groups and gains", _clients(advice), wide=True)])
    return page


def _clients(advice: Advice) -> str:
    """Every client: its group, and its score with each choice."""
    head = "".join(f"<th class='number'>{escape(choice.name)}</th>" for choice in advice.choices)
    lines = []
    for client, group in sorted(advice.clients.items(), key=lambda pair: (pair[1], pair[0])):
        scores = [choice.per_client.get(client) for choice in advice.choices]
        cells = "".join(
            f"<td class='number'>{'–' if value is None else _score(advice, value)}</td>" for value in scores
        )
        lines.append(f"<tr><td>{escape(client)}</td><td style='{painted(group)}'>{group}</td>{cells}</tr>")
    body = f"<thead><tr><th>client</th><th>group</th>{head}</tr></thead><tbody>{''.join(lines)}</tbody>"
    return f"<div class='scroll'><table>{body}</table></div>"


def _reason(advice: Advice) -> str:
    """Why this choice, and when it is not worth the trouble."""
    best = advice.recommended
    gain = best.over_fedavg if best.name != "FedAvg" else best.over_local
    other = "FedAvg" if best.name != "FedAvg" else "local training"
    if best.name == "local training":
        return "Local training is enough: it is sure that training together gains no more than half a point."
    if gain.high < 0:  # what would be better on the clients' own labels was not to be recommended
        ahead = amount_of(Interval(-gain.mean, -gain.high, -gain.low), advice.metric)
        return f"Recommended: {best.name}, which learns all labels. On those that clients have, {other} has {ahead}."
    sure = "" if gain.sure else ", which may be chance"
    return (
        f"Recommended: {best.name}. Against {other} clients gain {amount_of(gain, advice.metric)}{sure}. "
        "Longer runs may widen or close such gaps."
    )


def _members(advice: Advice) -> dict[int, list[str]]:
    found: dict[int, list[str]] = defaultdict(list)
    for client, group in advice.clients.items():
        found[group].append(client)
    return found


def _few(names: list[str]) -> str:
    more = f", ... ({len(names) - _MOST_NAMED} more)" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _looked_at(advice: Advice) -> str:
    some = f"{advice.looked_at} of " if advice.looked_at < advice.registered else ""
    return f"{some}{plural(advice.registered, 'client')}"


def _score(advice: Advice, value: float) -> str:
    return f"{100 * value:.1f} %" if _in_percent(advice) else f"{value:.4g}"


def _gain(advice: Advice, value: float) -> str:
    return f"{100 * value:+.1f} points" if _in_percent(advice) else f"{value:+.3g}"


def _interval(advice: Advice, gain: Interval) -> str:
    scale = 100 if _in_percent(advice) else 1
    digits = ".1f" if _in_percent(advice) else ".3g"
    return f"{scale * gain.low:+{digits}} to {scale * gain.high:+{digits}}"


def _in_percent(advice: Advice) -> bool:
    return advice.metric == "accuracy"

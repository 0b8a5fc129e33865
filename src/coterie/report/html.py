"""The two reports: one run, and several methods side by side. Each is one file that needs no network."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from pathlib import Path
from typing import Any

from coterie.core.measures import Measure, capitalised, client_scores, measure_of, score_of
from coterie.report.formatting import UNKNOWN, duration, human_bytes, method_title, number, percent, plural, score
from coterie.report.headlines import compare_headline, compare_warnings, lost_words, mean_score, run_headline
from coterie.runs.folder import RunFolder
from coterie.runs.records import CONFIG_FILE

from . import figures
from .comparison import CompareFolder, read_compare
from .page import Page, card
from .parts import client_map, contingency, failures_table, log_cards, panel_cards, warning_card

_MOST_BOXES = 12


def write_run_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a finished run and return its path."""
    run = RunFolder.of_finished(folder)
    result = run.result
    method = method_title(str(result["method"]))
    page = Page(
        title=f"{method} on {result['scenario']} · coterie",
        eyebrow=f"coterie · {method} on {result['scenario']}",
        headline=run_headline(result),
        meta=_meta(result),
    )
    title = capitalised(measure_of(result).title)
    page.tiles(_tiles(result))
    page.section("Warnings", warning_card(result.get("warnings")))
    page.section(
        "Learning",
        [
            page.chart(
                f"{title} over the rounds",
                figures.accuracy_over_rounds(run),
                "Every client is tested on its own test data with the model it would use in that round.",
            ),
            page.chart(
                f"{title} for the bytes sent",
                figures.accuracy_over_bytes(run),
                "Training messages in both directions; what only serves the evaluation is not counted.",
            ),
        ],
    )
    page.section("Groups", _groups(page, run))
    page.section("Clients", _clients(page, run))
    page.section(f"Inside {method}", [*panel_cards(page, run.panels), *log_cards(page, run)])
    page.section("Run it again", _again(run))
    return page.write(folder / "report.html")


def write_compare_report(folder: Path) -> Path:
    """Write `report.html` into the folder of a comparison and return its path."""
    comparison = read_compare(folder)
    summary = comparison.summary
    measure = next((measure_of(run.result) for run in comparison.runs), Measure())
    by_method: dict[str, list[RunFolder]] = {str(row["method"]): [] for row in summary["rows"]}
    for run in comparison.runs:
        by_method.setdefault(str(run.result["method"]), []).append(run)
    scenario = str(summary.get("scenario", ""))
    seeds = summary.get("seeds") or []
    clients = max((int(run.result["clients"]) for run in comparison.runs), default=0)
    facts = [
        plural(len(by_method), "method"),
        plural(len(seeds), "seed"),
        plural(clients, "client"),
        plural(max((int(run.result["rounds"]) for run in comparison.runs), default=0), "round"),
    ]
    page = Page(
        title=f"Comparison on {scenario} · coterie",
        eyebrow=f"coterie · comparison on {scenario}",
        headline=compare_headline(summary),
        meta=" · ".join(facts),
    )
    target = summary.get("target")
    page.section("Result", [card("All methods", _compare_table(summary), _compare_note(summary), wide=True)])
    page.section("Warnings", warning_card(compare_warnings(summary)))
    band = "The band is one standard deviation over the seeds. " if len(seeds) > 1 else ""
    page.section(
        "Learning",
        [
            page.chart(
                f"{capitalised(measure.title)} over the rounds",
                figures.compare_over_rounds(by_method),
                band + "Click a name to hide its curve.",
            ),
            page.chart(
                f"{capitalised(measure.title)} for the bytes sent",
                figures.compare_over_bytes(by_method, target),
                "Colours as in the chart before. Further left is cheaper; what sends nothing is not drawn.",
            ),
        ],
    )
    accuracies = {
        method_title(method): [value for run in runs for value in client_scores(run.result)]
        for method, runs in by_method.items()
    }
    page.section(
        "Clients",
        [
            page.chart(
                f"{capitalised(measure.title)} of each client",
                figures.client_accuracies(accuracies, range(len(accuracies)), "", measure),
                "One dot for each client and seed: a good mean can hide clients that are served badly.",
                wide=True,
            )
        ],
    )
    page.section("Runs", [card("Single runs", _run_list(comparison), wide=True), *_command(summary)])
    return page.write(folder / "report.html")


def _meta(result: Mapping[str, Any]) -> str:
    facts = [
        f"scenario {result['scenario']}",
        plural(int(result["clients"]), "client"),
        plural(int(result["rounds"]), "round"),
        f"seed {result['seed']}",
    ]
    if result.get("engine"):
        facts.append(str(result["engine"]))
    if result.get("inputs"):
        facts.append(f"inputs {result['inputs']}")
    return " · ".join(facts)


def _tiles(result: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    measure = measure_of(result)
    rounds, seconds = int(result["rounds"]), result.get("seconds")
    pace = f"{duration(seconds / rounds)} a round" if seconds is not None and rounds else ""
    down, up = result.get("bytes_down"), result.get("bytes_up")
    both = None if down is None or up is None else down + up
    ari = result.get("ari")
    agreement = f"ARI {score(ari)} against the truth" if ari is not None else "no truth to compare with"
    failures = result.get("failures") or 0
    lost = len(failures) if isinstance(failures, Sequence | Mapping) else int(failures)
    return [
        (f"Mean {measure.title}", measure.text(score_of(result)), "each client on its own test data"),
        ("Fine-tuned", measure.text(result.get("finetuned_score")), "the same after a little training of its own"),
        ("Floor", measure.text(result.get("floor")), "a constant answer of each client"),
        ("Worst client", measure.text(score_of(result, worst=True)), _worst_client(result)),
        ("Groups", number(result.get("n_clusters")), agreement),
        ("Sent", human_bytes(both), f"{human_bytes(down)} down, {human_bytes(up)} up"),
        ("Time", duration(seconds), pace),
        ("Replies lost", number(lost), lost_words(result.get("lost"), "missing, late or refused") if lost else "none"),
    ]


def _worst_client(result: Mapping[str, Any]) -> str:
    """Which client has the worst score."""
    pairs = zip(client_scores(result), result.get("client_ids") or (), strict=False)
    known = [(value, name) for value, name in pairs if value is not None and isfinite(value)]
    worst = measure_of(result).worst(value for value, _ in known)
    return next((f"client {name}" for value, name in known if value == worst), "")


def _wanted(target: float, measure: Measure) -> str:
    return percent(target, 0) if measure.is_share else measure.text(target)


def _groups(page: Page, run: RunFolder) -> list[str]:
    result = run.result
    cards = []
    if any(value is not None for value in run.column("n_clusters")):
        cards.append(page.chart("Groups over the rounds", figures.groups_over_rounds(run)))
    if result.get("clusters"):
        crossed = contingency(result)
        if crossed:
            cards.append(
                card(
                    "The groups made against the true groups",
                    crossed,
                    "Numbers of clients; one filled cell a row and a column: the groups are exactly the true ones.",
                )
            )
        cards.append(card("Map of the clients", client_map(result), _map_note(result), wide=True))
    return cards


def _map_note(result: Mapping[str, Any]) -> str:
    rows = "A row is a true group" if result.get("truth") else "A row is a group"
    return f"{rows}, a cell a client, its colour and number the group it was put in. Point at a cell for more."


def _clients(page: Page, run: RunFolder) -> list[str]:
    values, measure = client_scores(run.result), measure_of(run.result)
    clusters = run.result.get("clusters")
    cards = []
    if values and clusters and 1 < len(set(clusters)) <= _MOST_BOXES:
        groups = {
            f"group {cluster}": [value for value, its in zip(values, clusters, strict=True) if its == cluster]
            for cluster in sorted(set(clusters))
        }
        figure = figures.client_accuracies(groups, sorted(set(clusters)), "group", measure)
        cards.append(page.chart(f"{capitalised(measure.title)} of each client, by group", figure))
    if values:
        cards.append(
            page.chart(f"How {measure.title} is spread over the clients", figures.accuracy_histogram(values, measure))
        )
    lost = failures_table(run)
    if lost:
        cards.append(card("Replies that did not count", lost, wide=True))
    return cards


def _again(run: RunFolder) -> list[str]:
    command, note = run.result.get("command") or _how_again(run), ""
    if not command:
        inside = "<p>The data and the model of this run were given in Python: run that program again.</p>"
    else:
        inside, note = f"<pre>{escape(str(command))}</pre>", "Paths are as seen from where the run was started."
    cards = [card("The command", inside, note, wide=True)]
    if run.config:
        cards.append(card("Configuration used (config.toml)", f"<pre>{escape(run.config.strip())}</pre>", wide=True))
    return cards


def _how_again(run: RunFolder) -> str:
    """The command that makes the run again; config.toml holds all there is to say. Empty where no command can."""
    result, out = run.result, f"{run.path}-again"
    if run.from_python:
        return ""
    if not run.config:
        told = ["--scenario", str(result["scenario"]), "--rounds", str(result["rounds"]), "--seed", str(result["seed"])]
        return shlex.join(["coterie", "run", str(result["method"]), *told, "--out", out])
    return run.kind.again(shlex.quote(str(run.path / CONFIG_FILE)), shlex.quote(out), int(result["clients"]))


def _command(summary: Mapping[str, Any]) -> list[str]:
    command = summary.get("command")
    return [card("The command", f"<pre>{escape(str(command))}</pre>", wide=True)] if command else []


def _compare_table(summary: Mapping[str, Any]) -> str:
    target = summary.get("target")
    measure = measure_of(summary["rows"][0]) if summary["rows"] else Measure()
    columns = [
        f"{capitalised(measure.title)}, mean",
        "Fine-tuned",
        "Floor",
        "Worst client",
        "ARI",
        "Groups",
        "Down",
        "Up",
    ]
    columns += [f"To {_wanted(target, measure)}"] if target is not None else []
    loses = any(row.get("lost_mean") for row in summary["rows"])
    columns += ["Replies lost"] if loses else []
    columns += ["Time"]
    best = measure.best(mean for row in summary["rows"] if (mean := mean_score(row)) is not None)
    body = []
    for index, row in enumerate(summary["rows"]):
        mean = mean_score(row)
        width = 100 * mean if mean is not None and isfinite(mean) and measure.is_share else 0
        bar = f"<span class='bar' style='width:{width:.0f}%;background:{figures.colour(index)}'></span>"
        spread = row.get("score_sd", row.get("accuracy_sd")) if row.get("runs", 1) > 1 else None
        cells = [
            measure.text(row.get("finetuned_mean")), measure.text(row.get("floor_mean")),
            measure.text(row.get("worst_mean")), score(row.get("ari_mean")), number(row.get("n_clusters_mean"), 1),
            human_bytes(row.get("bytes_down")), human_bytes(row.get("bytes_up")),
        ]  # fmt: skip
        if target is not None:
            cells.append(_price(row))
        if loses:
            cells.append(_lost(row))
        cells.append(duration(row.get("seconds")))
        mark = " best" if mean is not None and mean == best else ""
        body.append(
            f"<tr><td><span class='dot' style='background:{figures.colour(index)}'></span>"
            f"{escape(method_title(str(row['method'])))}</td>"
            f"<td class='number{mark}'>{measure.spread(mean, spread)}{bar}</td>"
            + "".join(f"<td class='number'>{escape(cell)}</td>" for cell in cells)
            + "</tr>"
        )
    head = "".join(f"<th class='number'>{escape(name)}</th>" for name in columns)
    return (
        f"<div class='scroll'><table><thead><tr><th>Method</th>{head}</tr></thead>"
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


def _lost(row: Mapping[str, Any]) -> str:
    """Lost replies of one run, and why most of them."""
    mean = row.get("lost_mean") or 0
    return f"{number(mean, 1)} ({lost_words(row.get('lost'), 'reason not known')})" if mean else "0"


def _price(row: Mapping[str, Any]) -> str:
    """Bytes and rounds until the target accuracy."""
    if row.get("bytes_to_target") is None:
        return "never"
    rounds = row.get("rounds_to_target")
    return human_bytes(row["bytes_to_target"]) + (f" ({number(rounds, 1)} rounds)" if rounds is not None else "")


def _compare_note(summary: Mapping[str, Any]) -> str:
    measure = measure_of(summary["rows"][0]) if summary["rows"] else Measure()
    note = f"{capitalised(measure.title)} is the mean over clients of that on their own test data"
    if any(row.get("runs", 1) > 1 for row in summary["rows"]):
        note += ", ± one standard deviation over the seeds"
    note += (
        "; fine-tuned, after each client has trained its model a little more or kept it, as its held-out samples say; "
        "the floor is a constant answer of each client, its most frequent class or its mean"
    )
    note += ". Bytes and time are those of one run, evaluation not counted in the bytes"
    if summary.get("target") is not None:
        note += f"; the column To {_wanted(summary['target'], measure)} is what had been sent when the mean reached it"
    return note + "."


def _run_list(comparison: CompareFolder) -> str:
    rows = []
    for name, run in zip(comparison.summary["runs"], comparison.runs, strict=True):
        title = escape(f"{method_title(str(run.result['method']))}, seed {run.result['seed']}")
        if (run.path / "report.html").exists():
            title = f"<a href='{escape(str(name))}/report.html'>{title}</a>"
        values = (
            measure_of(run.result).text(score_of(run.result)),
            measure_of(run.result).text(score_of(run.result, worst=True)),
            score(run.result.get("ari")),
            duration(run.result.get("seconds")),
            str(run.result.get("engine") or UNKNOWN),
        )
        cells = "".join(f"<td class='number'>{escape(value)}</td>" for value in values[:-1])
        rows.append(f"<tr><td>{title}</td>{cells}<td class='words'>{escape(values[-1])}</td></tr>")
    head = "".join(f"<th class='number'>{name}</th>" for name in ("Mean", "Worst client", "ARI", "Time"))
    return (
        f"<div class='scroll'><table><thead><tr><th>Run</th>{head}<th>Engine</th></tr></thead>"
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )

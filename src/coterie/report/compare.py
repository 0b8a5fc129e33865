"""`coterie.compare`: several methods and seeds on the same clients, side by side, from Python."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Unpack

from rich.console import Console
from torch import nn

from coterie.core.errors import CoterieError, NothingLearnt
from coterie.core.samples import Population
from coterie.core.settings import check_keywords
from coterie.methods import Method, chosen_method
from coterie.report.fitted import FILE_WIDTH
from coterie.report.html import write_compare_report
from coterie.report.results import print_compare_table
from coterie.report.run import RunKeywords, run
from coterie.runs.compare import check_target, compared, summary
from coterie.runs.folder import RunFolder
from coterie.runs.options import check_seed
from coterie.runs.records import COMPARE_FILE, CONFIG_FILE
from coterie.runs.result import Result


@dataclass(frozen=True)
class Comparison:
    """How several methods did. `rows` has one entry for each method, `results` the result of each method and seed."""

    rows: Sequence[Mapping[str, Any]]
    results: Mapping[tuple[str, int], Result]
    failed: Sequence[Mapping[str, Any]] = ()
    """Runs that came to nothing, and why."""
    target: float | None = None
    path: Path | None = None

    def __str__(self) -> str:
        text = StringIO()
        self._print(Console(file=text, width=FILE_WIDTH, no_color=True))
        return text.getvalue().rstrip()

    def _repr_html_(self) -> str:
        console = Console(file=StringIO(), width=FILE_WIDTH, record=True)
        self._print(console)
        return console.export_html(inline_styles=True, code_format="<pre>{code}</pre>")

    def _print(self, console: Console) -> None:
        print_compare_table(self.rows, target=self.target, console=console)
        for one in self.failed:
            console.print(f"{one['method']}, seed {one['seed']}: {one['why']}", markup=False, highlight=False)


def compare(
    methods: Sequence[Method | str],
    population: Population,
    model: nn.Module | Callable[[], nn.Module],
    *,
    seeds: Sequence[int] = (0,),
    out: Path | str | None = None,
    target: float | None = None,
    **options: Unpack[RunKeywords],
) -> Comparison:
    """Run several methods, each with every seed, on the same clients; the result prints itself as a table.

    A method is a name, or a ready one (`coterie.method("ifca", k=3)`). With `out`, that folder has a run for each of
    them and a report, and the same call goes on with a comparison that was interrupted. The other options are those of
    `coterie.run`. A run that comes to nothing is named in `failed`, and the others go on.
    """
    check_keywords("compare", RunKeywords, options)
    chosen = [chosen_method(method)() if isinstance(method, str) else method for method in methods]
    names = [method.name for method in chosen]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if not names or doubled is not None:
        what = f"{doubled} is there twice" if doubled else "there is no method"
        raise CoterieError(f"A comparison has methods of different names, and {what}; name each once.")
    if not seeds:
        raise CoterieError("A comparison needs at least one seed, such as seeds=[0].")
    for seed in seeds:
        check_seed(seed)
    check_target(target)
    with ExitStack() as stack:
        home = Path(out) if out is not None else Path(stack.enter_context(TemporaryDirectory()))
        if (home / CONFIG_FILE).exists():
            raise CoterieError(f"{home} holds a single run; choose another folder for the comparison.")
        runs: dict[str, list[tuple[Path, dict[str, Any]]]] = {}
        results: dict[tuple[str, int], Result] = {}
        failed: list[dict[str, Any]] = []
        for method in chosen:
            for seed in seeds:
                place = home / f"{method.name}-seed{seed}"
                begun = (place / CONFIG_FILE).is_file()
                try:
                    result = run(method, population, model, seed=seed, out=place, resume=begun, **options)
                except NothingLearnt as error:
                    failed.append({"method": method.name, "seed": seed, "why": str(error)})
                    continue
                results[method.name, seed] = result
                runs.setdefault(method.name, []).append((place, json.loads(result.to_json())))
        if not runs:
            raise NothingLearnt(failed[0]["why"])
        rows = [summary(name, done, target) for name, done in runs.items()]
        if out is not None:
            subject = options.get("scenario", "own data")
            RunFolder(home).write(COMPARE_FILE, compared(subject, target, seeds, rows, failed, runs))
            write_compare_report(home)
    return Comparison(rows, results, failed, target, None if out is None else home)

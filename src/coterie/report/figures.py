"""The charts, as plain plotly figures (dictionaries); the page's script adds the colours of the theme."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import isfinite
from statistics import fmean, pstdev
from typing import Any

from coterie.core.measures import Measure, measure_of, score_of
from coterie.core.panels import Heatmap, Histogram, Lines, NodeGraph
from coterie.report.formatting import method_title
from coterie.runs.folder import RunFolder

from . import axes

Figure = dict[str, Any]

# Paul Tol's "bright" scheme with two of his "vibrant" one: good for any colour vision, on white and black.
PALETTE = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#aa3377", "#66ccee", "#ee7733", "#009988", "#888888")
_DASHES = ("solid", "dash", "dot", "dashdot")
_NAMES_IN_A_ROW, _ROW_HEIGHT = 4, 20  # of a legend: what has many names is drawn higher
_PERCENT = ".0%"
_SEQUENTIAL = [[0.0, "#f4f7fb"], [0.35, "#a9c4e0"], [0.7, "#4477aa"], [1.0, "#1b3a5c"]]


def colour(index: int) -> str:
    """The colour of the i-th cluster, method or curve."""
    return PALETTE[index % len(PALETTE)]


def accuracy_over_rounds(run: RunFolder) -> Figure:
    """Mean and worst client over the rounds."""
    data = [
        _line("mean over clients", run.column("round"), scores(run), 0),
        _line("worst client", run.column("round"), scores(run, worst=True), 1, dash="dot"),
    ]
    floor = run.result.get("floor")
    if floor is not None:
        data.append(_line("floor", run.column("round"), [floor] * len(run.column("round")), 7, dash="dash"))
    return _score_figure(measure_of(run.result), data, "round")


def accuracy_over_bytes(run: RunFolder) -> Figure:
    """Mean accuracy against what has been sent so far."""
    line = _line("mean over clients", traffic(run), scores(run), 0)
    return _score_figure(measure_of(run.result), [line], "MB sent, down and up together")


def groups_over_rounds(run: RunFolder) -> Figure:
    """How many clusters there are, and how well they agree with the truth where it is known."""
    count = _line("groups", run.column("round"), run.column("n_clusters"), 2)
    count["line"]["shape"] = "hv"
    data = [count]
    agreement = any(value is not None for value in run.column("ari"))
    if agreement:
        data.append(
            _line("agreement with the truth (ARI)", run.column("round"), run.column("ari"), 4) | {"yaxis": "y2"}
        )
    figure = _figure(data, "round", "groups")
    figure["layout"]["yaxis"] |= {"rangemode": "tozero", **axes.whole(run.column("n_clusters"))}
    if agreement:
        lowest = min((value for value in run.column("ari") if value is not None), default=0.0)
        figure["layout"]["yaxis2"] = {
            "overlaying": "y", "side": "right", "range": [min(0.0, lowest) - 0.05, 1.05], "title": {"text": "ARI"},
            "tickmode": "array", "tickvals": [0, 0.25, 0.5, 0.75, 1],
            "showgrid": False, "zeroline": False, "automargin": True,
        }  # fmt: skip
    return figure


def client_accuracies(
    groups: Mapping[str, Sequence[float | None]], colours: Sequence[int], x_label: str, measure: Measure | None = None
) -> Figure:
    """One box with all its points for each group of clients."""
    data = [
        {
            "type": "box", "name": _text(name), "y": _clean(values), "boxpoints": "all",
            "jitter": 0.5, "pointpos": 0,
            "marker": {"color": colour(index), "size": 5, "opacity": 0.65}, "line": {"width": 1.5},
            "fillcolor": _faint(colour(index)), "hoveron": "points", "showlegend": False,
        }
        for (name, values), index in zip(groups.items(), colours, strict=True)
    ]  # fmt: skip
    figure = _score_figure(measure or Measure(), data, x_label, " on own test data", hover="closest")
    figure["layout"]["xaxis"] |= {"type": "category"}
    return figure


def accuracy_histogram(values: Sequence[float | None], measure: Measure | None = None) -> Figure:
    """How many clients have which score."""
    judged = measure or Measure()
    data: list[Figure] = [{"type": "histogram", "x": _clean(values), "nbinsx": 20, "marker": {"color": colour(0)}}]
    figure = _figure(data, f"{judged.title} on own test data", "clients", hover="closest")
    figure["layout"]["bargap"] = 0.06
    figure["layout"]["yaxis"] |= axes.whole([0, len(values)])
    if not judged.is_share:
        return figure
    figure["layout"]["xaxis"] |= {"tickformat": _PERCENT}
    narrow = axes.shares(data[0]["x"])
    if narrow:  # plotly would take all that is equal for one bar from -50 % to 150 %
        low, high = narrow["range"]
        data[0]["xbins"] = {"start": low, "end": high, "size": (high - low) / 20}
        figure["layout"]["xaxis"] |= narrow
    return figure


def compare_over_rounds(runs: Mapping[str, Sequence[RunFolder]]) -> Figure:
    """Mean accuracy of every method over the rounds; the band is one standard deviation over the seeds."""
    data: list[Figure] = []
    for index, (method, same) in enumerate(runs.items()):
        rounds, means, spreads, _ = _over_seeds(same)
        data += _band(rounds, means, spreads, index, method)
        data.append(_line(method_title(method), rounds, means, index, dash=_dash(index)) | {"legendgroup": method})
    return _score_figure(_judged_by(runs), data, "round", before="mean ")


def compare_over_bytes(runs: Mapping[str, Sequence[RunFolder]], target: float | None) -> Figure:
    """Mean accuracy of every method against the bytes sent."""
    data = []
    for index, (method, same) in enumerate(runs.items()):
        _, means, _, sent = _over_seeds(same)
        if any(sent):
            data.append(_line(method_title(method), sent, means, index, dash=_dash(index)))
    measure = _judged_by(runs)
    figure = _score_figure(measure, data, "MB sent, down and up together", before="mean ", hover="closest")
    figure["layout"]["showlegend"] = False  # it is the one of the chart before it
    if target is not None:
        figure["layout"]["shapes"] = [
            {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": target, "y1": target,
             "line": {"width": 1, "dash": "dash", "color": "#888888"}},
        ]  # fmt: skip
        figure["layout"]["annotations"] = [
            {"xref": "paper", "x": 0.99, "xanchor": "right", "y": target, "yanchor": "bottom",
             "showarrow": False, "text": f"target {target:.0%}", "font": {"size": 11}},
        ]  # fmt: skip
    return figure


def lines(panel: Lines) -> Figure:
    """A method's own curves."""
    data = [
        _line(name, panel.x, values, index, dash=_dash(index))
        for index, (name, values) in enumerate(panel.series.items())
    ]
    figure = _figure(data, panel.x_label, panel.y_label)
    figure["layout"]["yaxis"] |= axes.plain([value for trace in data for value in trace["y"]])
    return figure


def heatmap(panel: Heatmap) -> Figure:
    """A method's own matrix, first row on top."""
    trace: Figure = {
        "type": "heatmap", "z": [_clean(row) for row in panel.z], "colorscale": _SEQUENTIAL,
        "hoverongaps": False, "colorbar": {"thickness": 10, "outlinewidth": 0},
    }  # fmt: skip
    if panel.x_labels:
        trace["x"] = [_text(label) for label in panel.x_labels]
    if panel.y_labels:
        trace["y"] = [_text(label) for label in panel.y_labels]
    figure = _figure([trace], "", "", hover="closest")
    figure["layout"]["yaxis"] |= {"autorange": "reversed", "showgrid": False}
    figure["layout"]["xaxis"] |= {"showgrid": False}
    for axis, labels in (("xaxis", panel.x_labels), ("yaxis", panel.y_labels)):
        if labels:
            figure["layout"][axis]["type"] = "category"
    return figure


def histogram(panel: Histogram) -> Figure:
    """A method's own distributions, drawn over each other."""
    data = [
        {
            "type": "histogram", "name": _text(name), "x": _clean(values), "nbinsx": 40, "opacity": 0.6,
            "marker": {"color": colour(index)},
        }
        for index, (name, values) in enumerate(panel.series.items())
    ]  # fmt: skip
    figure = _figure(data, "", "count", hover="closest")
    figure["layout"] |= {"barmode": "overlay"}
    return figure


def graph(panel: NodeGraph) -> Figure:
    """Nodes where springs of the edges' strength put them; heavier edges are drawn stronger."""
    import networkx  # type: ignore[import-untyped]

    network = networkx.Graph()
    network.add_nodes_from(range(len(panel.nodes)))
    for edge in panel.edges:
        network.add_edge(edge.source, edge.target, weight=max(edge.weight, 0.0))
    place = networkx.spring_layout(network, seed=0)
    heaviest = max((abs(edge.weight) for edge in panel.edges), default=0.0) or 1.0
    data: list[Figure] = []
    for shade in range(3):
        # plotly has one style for each trace, so the edges go into three traces by weight
        chosen = [edge for edge in panel.edges if min(int(3 * abs(edge.weight) / heaviest), 2) == shade]
        data.append({
            "type": "scatter", "mode": "lines", "hoverinfo": "skip", "showlegend": False,
            "x": [x for edge in chosen for x in (place[edge.source][0], place[edge.target][0], None)],
            "y": [y for edge in chosen for y in (place[edge.source][1], place[edge.target][1], None)],
            "line": {"width": 0.6 + 0.7 * shade, "color": "rgba(128,128,128,0.45)"},
        })  # fmt: skip
    for group in sorted({node.group for node in panel.nodes}):
        members = [index for index, node in enumerate(panel.nodes) if node.group == group]
        data.append({
            "type": "scatter", "mode": "markers", "name": f"group {group}", "hoverinfo": "text",
            "x": [place[index][0] for index in members], "y": [place[index][1] for index in members],
            "text": [_text(panel.nodes[index].label) for index in members],
            "marker": {"size": 11, "color": colour(group), "line": {"width": 1, "color": "#ffffff"}},
        })  # fmt: skip
    figure = _figure(data, "", "", hover="closest")
    for axis in ("xaxis", "yaxis"):
        figure["layout"][axis] |= {"visible": False}
    return figure


def scores(run: RunFolder, *, worst: bool = False) -> list[float | None]:
    """What the run was judged by, round by round; older runs by their accuracy."""
    return [score_of(row, worst) for row in run.metrics]


def _judged_by(runs: Mapping[str, Sequence[RunFolder]]) -> Measure:
    return next((measure_of(run.result) for same in runs.values() for run in same), Measure())


def _score_figure(
    measure: Measure, data: list[Figure], x_label: str, after: str = "", *, before: str = "", hover: str = "x unified"
) -> Figure:
    """A figure whose vertical axis is what runs are judged by."""
    shares = _PERCENT if measure.is_share else ""
    return _figure(data, x_label, f"{before}{measure.title}{after}", y_format=shares, hover=hover)


def traffic(run: RunFolder) -> list[float | None]:
    """Megabytes sent so far in both directions, evaluation not counted."""
    both = zip(run.column("bytes_down"), run.column("bytes_up"), strict=True)
    return [None if down is None or up is None else (down + up) / 1e6 for down, up in both]


def _over_seeds(
    runs: Sequence[RunFolder],
) -> tuple[list[float | None], list[float | None], list[float], list[float | None]]:
    """Rounds, mean accuracy, standard deviation and mean megabytes over the runs that know them."""
    seen: dict[float, list[tuple[float, float | None]]] = {}
    for run in runs:
        for at, value, sent in zip(run.column("round"), scores(run), traffic(run), strict=True):
            if at is not None and value is not None and isfinite(value):
                seen.setdefault(at, []).append((value, sent))
    rounds: list[float | None] = [*sorted(seen)]
    points = [seen[at] for at in sorted(seen)]
    sent_means: list[float | None] = []
    for point in points:
        known = [sent for _, sent in point if sent is not None]
        sent_means.append(fmean(known) if known else None)
    accuracies = [[value for value, _ in point] for point in points]
    return (rounds, [fmean(values) for values in accuracies], [pstdev(values) for values in accuracies], sent_means)


def _band(
    x: Sequence[float | None], means: Sequence[float | None], spreads: Sequence[float], index: int, group: str
) -> list[Figure]:
    """Two invisible curves with the space between them filled."""
    if not any(spreads):
        return []
    shared = {"type": "scatter", "mode": "lines", "x": list(x), "line": {"width": 0}, "hoverinfo": "skip",
              "showlegend": False, "legendgroup": group}  # fmt: skip
    pairs = [(mean or 0.0, spread) for mean, spread in zip(means, spreads, strict=True)]
    low = shared | {"y": [mean - spread for mean, spread in pairs]}
    high = shared | {"y": [mean + spread for mean, spread in pairs]}
    return [low, high | {"fill": "tonexty", "fillcolor": _faint(colour(index))}]


def _line(
    name: str, x: Sequence[float | None], y: Sequence[float | None], index: int, *, dash: str = "solid"
) -> Figure:
    few = len(x) <= 30
    return {
        "type": "scatter", "name": _text(name), "x": _clean(x), "y": _clean(y), "connectgaps": True,
        "mode": "lines+markers" if few else "lines", "marker": {"size": 5},
        "line": {"color": colour(index), "width": 2.2, "dash": dash},
    }  # fmt: skip


def _figure(data: list[Figure], x_label: str, y_label: str, *, y_format: str = "", hover: str = "x unified") -> Figure:
    named = sum(trace.get("showlegend", True) for trace in data)
    more = max(0, -(-named // _NAMES_IN_A_ROW) - 2)
    layout: Figure = {
        "height": 330 + _ROW_HEIGHT * more, "margin": {"l": 56, "r": 18, "t": 10, "b": 46}, "hovermode": hover,
        "xaxis": {"title": {"text": _text(x_label), "standoff": 8}, "zeroline": False, "automargin": True},
        "yaxis": {"title": {"text": _text(y_label), "standoff": 8}, "zeroline": False, "automargin": True,
                  "tickformat": y_format},
        "legend": {"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "tracegroupgap": 2},
        "showlegend": named > 1,
    }  # fmt: skip
    if y_format == _PERCENT:
        layout["yaxis"] |= axes.shares([value for trace in data for value in trace["y"]])
    if x_label == "round":
        layout["xaxis"] |= axes.whole([value for trace in data for value in trace["x"]])
    return {"data": data, "layout": layout}


def _clean(values: Sequence[float | None]) -> list[float | None]:
    """JSON knows no NaN and no infinity."""
    return [value if value is None or isfinite(value) else None for value in values]


def _text(words: str) -> str:
    """Words of users must not act as markup, which plotly would otherwise read in them."""
    return escape(words, quote=False)


def _dash(index: int) -> str:
    """Once the colours are used up, the next round of curves is dashed."""
    return _DASHES[(index // len(PALETTE)) % len(_DASHES)]


def _faint(hexadecimal: str) -> str:
    red, green, blue = (int(hexadecimal[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.18)"

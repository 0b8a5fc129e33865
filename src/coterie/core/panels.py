"""What a method may show in a report beyond the usual figures, as plain typed values that survive JSON.

A method returns a list of panels; the run saves them as `panels.json`; the report draws them.
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import ClassVar

import numpy as np
from PIL import Image
from torch import Tensor

from coterie.core.errors import CoterieError
from coterie.core.files import write_whole

Number = float | None
Cell = str | float | bool | None


@dataclass(frozen=True)
class _Values:
    """Keeps what it is given as tuples and plain numbers, so that a panel is really frozen and fits into JSON."""

    def __post_init__(self) -> None:
        for field in fields(self):
            object.__setattr__(self, field.name, _plain(getattr(self, field.name)))


@dataclass(frozen=True)
class Lines(_Values):
    """One or more curves over the same x values."""

    kind: ClassVar[str] = "lines"
    title: str
    x: Sequence[float]
    series: Mapping[str, Sequence[Number]]
    x_label: str = "round"
    y_label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values in self.series.items():
            if len(values) != len(self.x):
                raise CoterieError(
                    f"Curve {name!r} of panel {self.title!r} has {len(values)} values for {len(self.x)}; "
                    "give one for each, None where it is unknown."
                )


@dataclass(frozen=True)
class Heatmap(_Values):
    """A matrix as colours: similarities, distances, adjacency."""

    kind: ClassVar[str] = "heatmap"
    title: str
    z: Sequence[Sequence[Number]]
    x_labels: Sequence[str] = ()
    y_labels: Sequence[str] = ()
    note: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len({len(row) for row in self.z}) > 1:
            raise CoterieError(f"The rows of panel {self.title!r} differ in length; a heat map needs a full matrix.")


@dataclass(frozen=True)
class Histogram(_Values):
    """Distributions of one or more samples of numbers."""

    kind: ClassVar[str] = "histogram"
    title: str
    series: Mapping[str, Sequence[float]]


@dataclass(frozen=True)
class ImageGrid(_Values):
    """Rows of small pictures, each a base64 PNG; `image_grid` makes one from a tensor."""

    kind: ClassVar[str] = "images"
    title: str
    images: Sequence[Sequence[str]]
    row_labels: Sequence[str] = ()
    col_labels: Sequence[str] = ()


@dataclass(frozen=True)
class Node:
    """A node of a graph; nodes of one group share a colour."""

    label: str
    group: int = 0


@dataclass(frozen=True)
class Edge:
    """An edge between two nodes, given by their positions."""

    source: int
    target: int
    weight: float = 1.0


@dataclass(frozen=True)
class NodeGraph(_Values):
    """Who is linked to whom; the report lays it out with springs."""

    kind: ClassVar[str] = "graph"
    title: str
    nodes: Sequence[Node]
    edges: Sequence[Edge]

    def __post_init__(self) -> None:
        super().__post_init__()
        for edge in self.edges:
            if not (0 <= edge.source < len(self.nodes) and 0 <= edge.target < len(self.nodes)):
                raise CoterieError(
                    f"Edge {edge.source} -> {edge.target} of panel {self.title!r} names an unknown node; "
                    f"there are {len(self.nodes)} nodes, counted from 0."
                )


@dataclass(frozen=True)
class Table(_Values):
    """Rows of cells under column names."""

    kind: ClassVar[str] = "table"
    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


@dataclass(frozen=True)
class Text(_Values):
    """Paragraphs of plain words; `code` and **bold** are understood, nothing else is."""

    kind: ClassVar[str] = "text"
    title: str
    paragraphs: Sequence[str]


Panel = Lines | Heatmap | Histogram | ImageGrid | NodeGraph | Table | Text
_KINDS: dict[str, type[Panel]] = {
    panel.kind: panel for panel in (Lines, Heatmap, Histogram, ImageGrid, NodeGraph, Table, Text)
}


def image_grid(title: str, images: Tensor, row_labels: Sequence[str] = (), col_labels: Sequence[str] = ()) -> ImageGrid:
    """A grid from a tensor [rows, columns, channels, height, width].

    uint8 is shown as it is; other numbers are stretched from black (the least of the grid) to white.
    """
    if images.dim() != 5 or images.shape[2] not in (1, 3):
        raise CoterieError(
            f"An image grid needs a tensor [rows, columns, 1 or 3 channels, height, width] and got "
            f"{tuple(images.shape)}; reshape it."
        )
    pixels = images.detach().cpu().numpy()
    if pixels.dtype != np.uint8:
        finite = np.nan_to_num(pixels.astype(np.float64))
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 1.0)
        pixels = np.rint((finite - low) * (255 / max(high - low, 1e-12))).astype(np.uint8)
    return ImageGrid(title, [[_png(one) for one in row] for row in pixels], list(row_labels), list(col_labels))


def _png(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> str:
    """One picture [channels, height, width] as base64 PNG."""
    shown = pixels[0] if pixels.shape[0] == 1 else pixels.transpose(1, 2, 0)
    buffer = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(shown)).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def to_json(panel: Panel) -> dict[str, object]:
    """The panel as plain JSON values, with its kind."""
    return {"kind": panel.kind} | asdict(panel)


def from_json(value: object) -> Panel:
    """The panel that `to_json` wrote."""
    if not isinstance(value, dict) or value.get("kind") not in _KINDS:
        raise CoterieError(f"A panel must be an object with a kind out of {', '.join(_KINDS)}; delete panels.json.")
    given = {key: item for key, item in value.items() if key != "kind"}
    try:
        if value["kind"] == NodeGraph.kind:
            given["nodes"] = [Node(**node) for node in given["nodes"]]
            given["edges"] = [Edge(**edge) for edge in given["edges"]]
        return _KINDS[value["kind"]](**given)
    except (TypeError, KeyError, AttributeError) as error:
        raise CoterieError(
            f"A {value['kind']!r} panel cannot be read ({error}); delete panels.json and report again."
        ) from error


def save_panels(path: Path, panels: Sequence[Panel]) -> None:
    """Write the panels as JSON."""
    write_whole(path, json.dumps([to_json(panel) for panel in panels], allow_nan=False).encode())


def load_panels(path: Path) -> list[Panel]:
    """Read what `save_panels` wrote."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CoterieError(f"The panels in {path} cannot be read ({error}); delete the file.") from error
    if not isinstance(values, list):
        raise CoterieError(f"The panels in {path} are not a list; delete the file.")
    return [from_json(value) for value in values]


def _plain(value: object) -> object:
    """Tensors, arrays and lists as tuples, numpy's numbers as Python's, NaN and infinities as None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        convert: Callable[[], object] = value.tolist
        return _plain(convert())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(_plain(item) for item in value)
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value

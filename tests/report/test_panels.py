from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from coterie.core.errors import CoterieError
from coterie.core.panels import (
    Edge,
    Heatmap,
    Lines,
    Node,
    NodeGraph,
    Panel,
    Table,
    from_json,
    image_grid,
    load_panels,
    save_panels,
    to_json,
)

from .fakes import some_panels


def test_every_kind_survives_the_file(tmp_path: Path) -> None:
    panels = some_panels()
    assert len({panel.kind for panel in panels}) == 7
    save_panels(tmp_path / "panels.json", panels)
    assert load_panels(tmp_path / "panels.json") == panels


@given(
    st.text(),
    st.dictionaries(
        st.text(), st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), min_size=3, max_size=3)
    ),
)
def test_lines_survive_json(title: str, series: dict[str, list[float | None]]) -> None:
    panel = Lines(title, [1.0, 2.0, 3.0], series)
    assert from_json(json.loads(json.dumps(to_json(panel)))) == panel


def test_tensors_arrays_and_not_numbers_become_plain_values(tmp_path: Path) -> None:
    array = np.array([[np.nan, 1.0], [2.0, np.inf]], dtype=np.float32)
    panels: list[Panel] = [Heatmap("h", array.tolist()), Table("t", ["a"], torch.tensor([[1], [2]]).tolist())]
    assert panels[0] == Heatmap("h", ((None, 1.0), (2.0, None)))
    assert Heatmap("h", array) == panels[0]  # type: ignore[arg-type]
    assert Table("t", ["a"], torch.tensor([[1], [2]])) == panels[1]  # type: ignore[arg-type]
    save_panels(tmp_path / "p.json", panels)
    assert load_panels(tmp_path / "p.json") == panels


def _pixels(picture: str) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))))


def test_image_grid_shows_uint8_as_it_is_and_stretches_other_numbers() -> None:
    raw = torch.arange(2 * 3 * 2 * 2, dtype=torch.uint8).reshape(1, 2, 3, 2, 2)
    grid = image_grid("colour", raw, ["r"], ["a", "b"])
    assert _pixels(grid.images[0][1]).transpose(2, 0, 1).tolist() == raw[0, 1].tolist()
    grey = image_grid("grey", torch.tensor([[[[[-1.0, 0.0], [0.5, 1.0]]]]]))
    assert _pixels(grey.images[0][0]).tolist() == [[0, 128], [191, 255]]
    flat = image_grid("flat", torch.full((1, 1, 1, 2, 2), 7.0))
    assert _pixels(flat.images[0][0]).max() == 0


@pytest.mark.parametrize("shape", [(2, 3, 8, 8), (1, 1, 2, 8, 8)])
def test_image_grid_refuses_other_shapes(shape: tuple[int, ...]) -> None:
    with pytest.raises(CoterieError, match="1 or 3 channels"):
        image_grid("x", torch.zeros(shape))


def test_panels_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(CoterieError, match="has 1 values for 2"):
        Lines("l", [1, 2], {"a": [1.0]})
    with pytest.raises(CoterieError, match="full matrix"):
        Heatmap("h", [[1.0], [1.0, 2.0]])
    with pytest.raises(CoterieError, match="unknown node"):
        NodeGraph("g", [Node("a")], [Edge(0, 1)])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[{", "cannot be read"),
        ("{}", "not a list"),
        ("[1]", "with a kind out of"),
        ('[{"kind": "pie"}]', "with a kind out of"),
        ('[{"kind": "table", "title": "t"}]', "'table' panel cannot be read"),
        ('[{"kind": "graph", "title": "t", "nodes": [{"colour": 1}], "edges": []}]', "'graph' panel cannot be read"),
    ],
)
def test_broken_files_are_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "panels.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CoterieError, match=words):
        load_panels(path)

"""What is read from disk: checkpoints, memories, models, configurations and own data."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.samples import Normalise
from coterie.data import from_arrays
from coterie.data.folders import from_file, from_path
from coterie.data.schema import read_schema, schema_of
from coterie.deploy.memory import DiskMemory
from coterie.runs.config import from_tables, read_tables
from coterie.runs.experiment import defaults_of
from coterie.runs.folder import RunFolder
from coterie.runs.health import Health
from coterie.runs.saved import encode_model, load_model

from ..tiny import small_net
from .door import Door
from .mutations import (
    spoilt_bytes,
    spoilt_json,
    spoilt_npz,
    spoilt_toml,
    spoilt_wire,
)

TOML = b"""method = "ifca"
rounds = 3
seed = 7
model = "digits-mlp"
dtype = "float64"
evaluate_every = 2
checkpoint_seconds = 1.5
track = ["tensorboard"]
[scenario]
name = "rotated-digits"
clients = 8
groups = 2
alpha = 0.5
validation = 0.2
drift = [[5, 4]]
[settings]
k = 2
lr = 0.05
optimiser = "adam"
[faults]
dropout = 0.1
[engine]
workers = 1
kernel = true
"""


_ROWS = [(i, (b"Ulm", b"Rome")[i % 2], (b"no", b"yes")[i // 2 % 2]) for i in range(8)]


def files(folder: Path) -> list[Door]:
    """What is read from disk: checkpoints, memories, models, configurations and the user's own data."""
    return [*_checkpoints(folder), *_configurations(folder), *_own_data(folder), *_tables(folder)]


def _checkpoints(folder: Path) -> list[Door]:
    run = RunFolder.create(folder / "run", TOML.decode())
    run.checkpoint.save(
        method="m", state={"x": torch.ones(4)}, next_round=3, seconds=1.5, failures=2, health=Health(valid=1),
        ledger=({"train": 5}, {"train": 6}), memory={"a": {"y": torch.ones(2)}}, touched=["a"],
    )  # fmt: skip
    latest = folder / "run" / "checkpoint" / "latest.json"
    whole = latest.read_bytes()
    unsealed = json.loads(whole)
    del unsealed["digest"]

    logs = {name: (folder / "run" / name).read_bytes() for name in ("events.jsonl", "metrics.csv")}

    def resume(data: bytes) -> None:
        latest.write_bytes(data)
        for name, content in logs.items():  # they are cut back to what a checkpoint says
            (folder / "run" / name).write_bytes(content)
        RunFolder.reopen(folder / "run").checkpoint.load("m", dict[str, Tensor], rounds=10)

    def state(data: bytes) -> None:
        (folder / "run" / "checkpoint" / unsealed["state"]).write_bytes(data)
        resume(whole)

    memory = DiskMemory(folder / "memories", "run")
    memory.keep("aa", 1, {"x": torch.ones(3)}, 0)
    kept = next(memory.path.iterdir())
    old = kept.with_name(kept.name.partition("=")[0] + ".safetensors")  # from before there were digests
    seed = kept.read_bytes()
    kept.unlink()

    def recall(data: bytes) -> None:
        old.write_bytes(data)
        memory.recall("aa", 1)

    def saved(data: bytes) -> None:
        (folder / "model.safetensors").write_bytes(data)
        load_model(folder / "model.safetensors", small_net)

    model = encode_model(small_net().state_dict(), Normalise())
    held = (folder / "run" / "checkpoint" / unsealed["state"]).read_bytes()
    return [
        Door("latest.json", (json.dumps(unsealed).encode(), whole), spoilt_json, resume),
        Door("state", (held,), spoilt_wire, state),
        Door("memory", (seed,), spoilt_wire, recall),
        Door("model", (model,), spoilt_wire, saved),
    ]


def _configurations(folder: Path) -> list[Door]:
    def configure(data: bytes) -> None:
        (folder / "run.toml").write_bytes(data)
        config = from_tables(read_tables(folder / "run.toml"))
        config.build_method(defaults_of(config))
        from_tables(read_tables(_written(folder / "again.toml", config.to_toml().encode())))

    return [Door("config", (TOML,), spoilt_toml, configure)]


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def _own_data(folder: Path) -> list[Door]:
    generator = np.random.default_rng(0)
    pixels, labels = generator.integers(0, 256, (6, 1, 8, 8), np.uint8), np.arange(6) % 3
    whole, parts = io.BytesIO(), io.BytesIO()
    np.savez(whole, x=pixels, y=labels, group=np.array("north"))
    rows = generator.normal(size=(6, 4))
    np.savez(parts, x_train=rows, y_train=labels, x_test=rows, y_test=labels, layout=np.array("rows"))

    def npz(data: bytes) -> None:
        (folder / "npz").mkdir(exist_ok=True)
        from_file(_written(folder / "npz" / "a.npz", data), "a")
        from_path(folder / "npz", validation=0.3)

    def leaf(data: bytes) -> None:
        for part in ("train", "test"):
            (folder / "leaf" / part).mkdir(parents=True, exist_ok=True)
        wide = data.count(b"0.25") > 9
        (folder / "leaf" / "test" / "a.json").write_bytes(leaf_seed if wide else float_seed)
        (folder / "leaf" / "train" / "a.json").write_bytes(data)
        population = from_path(folder / "leaf", validation=0.3)
        for client in population.ids:
            population.client(client)

    images = {user: {"x": [[0.5] * 64, [0.25] * 64], "y": [0, 1]} for user in "ab"}
    leaf_seed = json.dumps({"users": ["a", "b"], "num_samples": [2, 2], "user_data": images}).encode()
    row = {"x": [[0.5, -2], [1, 2], [3, 4]], "y": [0, 1, 0]}
    float_seed = json.dumps({"users": ["a"], "num_samples": [3], "user_data": {"a": row}}).encode()

    def picture(data: bytes) -> None:
        place = folder / "images" / "domain" / "class"
        place.mkdir(parents=True, exist_ok=True)
        (place / "b.png").write_bytes(png)
        (place / "a.png").write_bytes(data)
        from_path(folder / "images")

    from PIL import Image

    drawn = io.BytesIO()
    Image.fromarray(pixels[0, 0]).save(drawn, "png")
    png = drawn.getvalue()
    return [
        Door("npz", (whole.getvalue(), parts.getvalue()), spoilt_npz, npz),
        Door("leaf", (leaf_seed, float_seed), spoilt_json, leaf),
        Door("image", (png,), spoilt_bytes, picture),
    ]


def _tables(folder: Path) -> list[Door]:
    """CSV and Parquet files, and what a run keeps of how they were read."""
    import pyarrow
    from pyarrow import parquet

    def schema(data: bytes) -> None:
        _written(folder / "schema.json", data)
        read_schema(folder)

    def table(data: bytes) -> None:
        (folder / "csv").mkdir(exist_ok=True)
        _written(folder / "csv" / "a.csv", data)
        from_path(folder / "csv", missing="mean", task="auto")
        from_path(folder / "csv" / "a.csv", client="ward")

    def columns(data: bytes) -> None:
        (folder / "parquet").mkdir(exist_ok=True)
        _written(folder / "parquet" / "a.parquet", data)
        from_path(folder / "parquet", missing="drop")

    csv_seed = b"ward,age,town,y\n" + b"".join(b"w%d,%d.5,%s,%s\n" % (i % 2, i, t, y) for i, t, y in _ROWS)
    packed = io.BytesIO()
    parquet.write_table(
        pyarrow.table({"a": [1.0, None, 3.0, 4.0], "t": ["u", "v", "u", None], "y": [0, 1, 0, 1]}), packed
    )
    described = schema_of(from_arrays({"a": (np.eye(6), np.arange(6) % 3)})).to_json().encode()
    return [
        Door("csv", (csv_seed,), spoilt_bytes, table),
        Door("parquet", (packed.getvalue(),), spoilt_bytes, columns),
        Door("schema", (described,), spoilt_json, schema),
    ]

"""Real data as CSV files, one for each client, for the three examples that begin with such files (no download)."""

import argparse
import csv
import inspect
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from sklearn.datasets import load_diabetes, load_digits


def write(path: str, names: list[str], rows: Iterable[Sequence[object]]) -> None:
    """One CSV file."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        csv.writer(file).writerows([names, *rows])


images, labels = load_digits(return_X_y=True)  # half of the scanners hold the paper upside down
for part in range(9):
    rows = np.column_stack([images[:, :: 1 if part < 4 else -1], labels]).astype(int)[part::9].tolist()
    write(f"scanners/s{part}.csv" if part < 8 else "new-scanner.csv", [*(f"p{i}" for i in range(64)), "label"], rows)

patients, scores = load_diabetes(return_X_y=True, scaled=False)  # clinics; the score says how the illness goes on
for part in range(7):
    rows = np.column_stack([patients, scores])[part::7].tolist()
    write(f"clinics/c{part}.csv" if part < 6 else "new-clinic.csv", [*load_diabetes().feature_names, "target"], rows)

for module in (csv, inspect, json, argparse):  # programs; what kind of character comes after eight others?
    text = inspect.getsource(module).encode("ascii", "ignore").decode()[:1608]
    kinds = ["letter" if c.isalpha() else "space" if c.isspace() else "sign" for c in text]
    rows = [[*map(ord, text[i : i + 8]), kinds[i + 8]] for i in range(len(text) - 8)]
    name = module.__name__
    write(
        f"programs/{name}.csv" if name != "json" else "new-program.csv", [*(f"c{i}" for i in range(8)), "label"], rows
    )
print("wrote", len(list(Path().glob("*/*.csv"))), "files of clients and 3 of new ones")

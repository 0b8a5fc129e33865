"""`make bench`: every benchmark, as tables and as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import deployment, fedcg_step, hosts, load, networks, peer_methods, sampled, server, training, ward

BENCHMARKS: dict[str, Callable[[], list[dict[str, object]]]] = {
    "training": training.measure,
    "networks": networks.measure,
    "aggregation": server.aggregation,
    "registered": server.registered,
    "sampled-memory": sampled.sampled,
    "ward": ward.measure,
    "peers-overhead": peer_methods.overhead,
    "peers-scaling": peer_methods.scaling,
    "fedcg-step": fedcg_step.step_cost,
    "deployment-flower": deployment.flower,
    "deployment-peers": deployment.peers,
    "deployment-gateway": load.gateways,
    "deployment-slow-tenth": load.slow_tenth,
    "deployment-where": load.where,
    "deployment-many-peers": load.peers,
    "deployment-hosted-peers": hosts.hosted,
}


def machine() -> dict[str, object]:
    """What the numbers were taken on."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        models = [line.partition(":")[2].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    return {"cpu": cpu, "cores": os.cpu_count(), "torch": torch.__version__, "python": platform.python_version()}


def main() -> None:
    """Run the chosen benchmarks (all by default) and print them."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones (default: all): {', '.join(BENCHMARKS)}")
    parser.add_argument("--json", type=Path, default=Path("runs/bench.json"), help="where the JSON goes")
    options = parser.parse_args()
    console = Console()
    found: dict[str, object] = {"machine": machine()}
    console.print(found["machine"])
    unknown = set(options.names) - set(BENCHMARKS)
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    for name in options.names or BENCHMARKS:
        rows = BENCHMARKS[name]()
        found[name] = rows
        table = Table(title=name, title_justify="left")
        for column in rows[0]:
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(*(str(value) for value in row.values()))
        console.print(table)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(found, indent=1))
    console.print(f"JSON: {options.json}", highlight=False)


if __name__ == "__main__":
    main()

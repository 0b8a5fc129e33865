"""From a CSV file for each client to the classes of a new client's rows: digits from scanners in two hidden groups."""

from torch import nn

import coterie


def network() -> nn.Module:
    """64 pixels, 10 digits."""
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


print(coterie.run(coterie.method("ifca", k=2), coterie.from_path("scanners"), network, rounds=15, out="runs/scanners"))
print(coterie.load("runs/scanners", model=network).admit("new-scanner.csv").predict("new-scanner.csv"))

"""From a CSV file for each client to numbers for a new client's rows: how diabetes goes on, in its own units."""

from torch import nn

import coterie


def network() -> nn.Module:
    """10 measurements, one number."""
    return nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 1))


print(coterie.run("fedavg", coterie.from_path("clinics", task="regression"), network, rounds=15, out="runs/clinics"))
print(coterie.load("runs/clinics", model=network).admit("new-clinic.csv").predict("new-clinic.csv"))

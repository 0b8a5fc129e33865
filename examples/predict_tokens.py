"""From a CSV file of token ids for each client to words for a new client's rows: which kind of character comes next."""

from torch import nn

import coterie


def network() -> nn.Module:
    """8 characters, 3 kinds."""
    return nn.Sequential(nn.Embedding(128, 8), nn.Flatten(), nn.Linear(64, 3))


print(coterie.run("fedavg", coterie.from_path("programs", layout="tokens"), network, rounds=15, out="runs/programs"))
print(coterie.load("runs/programs", model=network).admit("new-program.csv").predict("new-program.csv"))

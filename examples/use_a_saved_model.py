"""Train, save, and use the model of one client on new inputs; how inputs are normalised is part of the file."""

from pathlib import Path
from tempfile import TemporaryDirectory

from torch import nn

import coterie

population = coterie.build("rotated-digits", seed=0, clients=8, groups=2)


def network() -> nn.Module:
    """What was trained."""
    return coterie.build_model("digits-mlp", population.shape, population.classes)


with TemporaryDirectory() as folder:
    result = coterie.run(coterie.method("ifca", k=2), population, network, rounds=10, out=Path(folder) / "run")
    assert result.clusters is not None
    client, cluster = result.client_ids[3], result.clusters[3]
    model = coterie.load_model(Path(folder) / "run" / "models" / f"cluster-{cluster}.safetensors", network)
    test = population.client(client).test
    right = (model(test.x).argmax(1) == test.y).double().mean().item()
    print(f"client {client} is in cluster {cluster}; its model has {right:.1%} on the client's test images")

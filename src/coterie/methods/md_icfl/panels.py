"""What a report shows of MD-ICFL (figures 5 to 7 of the paper)."""

from __future__ import annotations

from torch import Tensor

from coterie.core.panels import Heatmap, Panel, image_grid


def sample_panels(samples: Tensor, outputs: Tensor) -> list[Panel]:
    """The pseudo samples [K, C, M, ...], and what the models of each cluster's own clients make of them."""
    k, classes = samples.shape[0], [str(label) for label in range(samples.shape[1])]
    made: list[Panel] = []
    if samples.dim() == 6 and samples.shape[3] in (1, 3):
        names = [f"cluster {j}" for j in range(k)]
        made.append(image_grid("Pseudo samples, one per class and cluster", samples[:, :, 0], names, classes))
    for j in range(k):
        title = f"Cluster {j}: class probabilities of its clients' new models on its pseudo samples"
        note = "Row: the class a sample was made for; column: what the models say. A strong diagonal is good."
        made.append(Heatmap(title, outputs[j].tolist(), classes, classes, note))
    return made

"""A rough day: one client in five drops out, one reply in twenty is corrupt, four clients join in round 5."""

import coterie

population = coterie.build("rotated-digits", seed=0)
model = coterie.build_model("digits-mlp", population.shape, population.classes)
faults = coterie.Faults(dropout=0.2, nan=0.05, joins=((5, 4),))
result = coterie.run(coterie.method("ifca", batch=16), population, model, rounds=20, faults=faults)
print(f"{result.accuracy:.1%} mean accuracy, {result.n_clusters} clusters, {result.failures} replies lost")

"""Who gains by what: three methods on the same clients, client by client."""

import coterie

population = coterie.build("rotated-digits", seed=0, clients=12, groups=3)
model = coterie.build_model("digits-mlp", population.shape, population.classes)
results = {
    name: coterie.run(coterie.method(name, **settings), population, model, rounds=10)
    for name, settings in {"local": {}, "fedavg": {}, "ifca": {"k": 3}}.items()
}
alone = results["local"].per_client_accuracy
for name, result in results.items():
    pairs = zip(alone, result.per_client_accuracy, strict=True)
    gain = sum(before is not None and now is not None and now > before for before, now in pairs)
    print(f"{name}: {result.accuracy:.1%} mean accuracy; {gain} of 12 clients do better than alone")

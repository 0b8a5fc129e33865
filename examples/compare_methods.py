"""Who gains by what: three methods on the same clients, client by client."""

import coterie

population = coterie.build("rotated-digits", seed=0, clients=12, groups=3)
model = coterie.build_model("digits-mlp", population.shape, population.classes)
results = {
    name: coterie.run(coterie.method(name, **settings), population, model, rounds=10)
    for name, settings in {"local": {}, "fedavg": {}, "ifca": {"k": 3}}.items()
}
alone = dict(zip(results["local"].client_ids, results["local"].per_client_accuracy, strict=True))
for name, result in results.items():
    gains = [now - alone[client] for client, now in zip(result.client_ids, result.per_client_accuracy, strict=True)]
    print(f"{name}: {result.accuracy:.1%} mean accuracy, {sum(gain > 0 for gain in gains)} of 12 clients gain by it")

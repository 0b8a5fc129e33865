"""Clustered and personalised federated learning: find the groups hidden among clients, give each the model that fits."""

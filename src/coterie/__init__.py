"""Clustered and personalised federated learning: find the groups among clients, give each the model that fits."""

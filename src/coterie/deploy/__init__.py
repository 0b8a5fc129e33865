"""Federations of real machines: server methods on Flower, peer methods over zenoh."""

"""Peer methods over zenoh."""

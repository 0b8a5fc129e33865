"""auto (ours): groups are found while FedAvg trains."""

from coterie.methods.auto.method import Auto

__all__ = ["Auto"]

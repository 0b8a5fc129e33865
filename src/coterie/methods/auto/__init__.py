"""auto (ours): groups are found while FedAvg trains, and only where they pay."""

from coterie.methods.auto.method import Auto

__all__ = ["Auto"]

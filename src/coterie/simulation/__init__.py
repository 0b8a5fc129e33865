"""Federations in one machine: the simulator, its workers, and what goes wrong on purpose."""

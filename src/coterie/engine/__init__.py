"""Where clients run: the simulator with its workers and faults."""

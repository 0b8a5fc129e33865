"""What people see of a run: the live view, the HTML report, and adapters to other trackers."""

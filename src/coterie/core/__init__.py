"""What everything else is built on: models as numbers, tasks, cohorts, messages, the federation's interface."""

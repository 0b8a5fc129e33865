"""A run from its options to its result: the loop over rounds, the folder, comparisons, deployed runs."""

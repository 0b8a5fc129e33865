"""Methods without a server: what peers share, and the baselines among them."""

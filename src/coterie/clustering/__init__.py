"""Clustering as pure functions; scikit-learn and scipy do the work."""

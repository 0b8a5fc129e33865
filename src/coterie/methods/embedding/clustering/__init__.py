"""Clusters of embeddings: Ward's tree, the rules that cut it, centres that follow their members."""

"""One small script per library, each run by that library's own Python; `benchmarks.peers` starts them."""

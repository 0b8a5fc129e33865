"""Speed against the machine's limit and against plain loops, always as ratios taken in one run. Never a test."""

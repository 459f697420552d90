"""Speed, memory and verdicts beside the peers': `python -m benchmarks` runs the suites and writes tables and plots."""

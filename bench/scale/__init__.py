"""What grows with what is merely there: every operation on a large system, beside a small one, in one run.

Run it by `python -m bench.scale [--quick] [names]`; docs/explanation/benchmarks.md says how each figure is measured.
"""

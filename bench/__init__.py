"""The benchmarks: each figure is a ratio of ours to a bare reference, measured side by side in one run.

Run them by `python -m bench [names]`; docs/explanation/benchmarks.md says how each figure is measured.
"""

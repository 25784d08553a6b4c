"""The statements of the benchmarks, one a file."""

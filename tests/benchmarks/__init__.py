"""Benchmarks kept with the code: run by hand, on a machine where nothing else runs."""

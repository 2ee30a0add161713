"""Benchmarks: the library compared with Flower's own strategies, and a fleet under faults. Not part of the wheel."""

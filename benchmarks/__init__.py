"""Trellis beside its peers: `python -m benchmarks NAME`; one file per comparison, one JSON line per result."""

"""Benchmarks against other tools: `python -m benchmarks NAME`. One file per comparison, one JSON line per result."""

import trellis as trellis  # before torch: it decides how torch's threads wait

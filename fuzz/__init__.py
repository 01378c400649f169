"""Fuzzing: `python -m fuzz NAME`. One file per target; each case is random, reproducible, and must end in one sentence.

A case passes if it succeeds or raises TrellisError with a one-line message. Any other exception, a case of more than 20
seconds, and memory beyond twice that of valid input are findings."""

"""What the demo model has learned: the queries of `make demo`, as on the command line but in one process."""

import shlex
import sys
from pathlib import Path

from trellis.cli.main import main

QUERIES = """
states {run} -n 12
sample {run} -n 3
infill {run} "the function ___ a list"
draw {run} "the function returns a new list of the names" -o {run}/trellis.svg
"""

if __name__ == "__main__":
    run = Path(sys.argv[1])
    for query in QUERIES.format(run=shlex.quote(str(run))).strip().splitlines():
        print(f"\n$ trellis {query}", flush=True)
        try:
            main(shlex.split(query))
        except SystemExit as ended:
            if ended.code:
                raise
    print(f"\nThe trellis of a sentence: {run / 'trellis.svg'}\nThe report of the run: {run / 'report.html'}")

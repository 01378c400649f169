"""One job in several processes, as torchrun starts them. In a single process, nothing is sent and nothing waits.

Rows of a batch are divided among the processes in order. Sums are taken over all processes, so that each process has
the same parameters after every step. Only the first process (rank 0) writes.

The program `trellis` takes part in the job that started it. A Python script takes part only after `join()`; otherwise
every process of the script trains a model of its own, and sends nothing to the others.
"""

from trellis.distributed.job import (
    attempt,
    connect,
    declare,
    is_first,
    is_joined,
    is_stepping,
    job,
    join,
    local_rank,
    patience,
    rank,
    share_of,
    size,
    stepping,
    sums_within_steps,
    was_restarted,
)
from trellis.distributed.sums import add_up, add_up_rows, begin_sum, bytes_sent, from_all, largest
from trellis.distributed.turns import from_first, one_at_a_time, speaks_first

__all__ = [
    "add_up",
    "add_up_rows",
    "attempt",
    "begin_sum",
    "bytes_sent",
    "connect",
    "declare",
    "from_all",
    "from_first",
    "is_first",
    "is_joined",
    "is_stepping",
    "job",
    "join",
    "largest",
    "local_rank",
    "one_at_a_time",
    "patience",
    "rank",
    "share_of",
    "size",
    "speaks_first",
    "stepping",
    "sums_within_steps",
    "was_restarted",
]

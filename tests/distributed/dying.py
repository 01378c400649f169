"""`trellis` of which one process is killed in the middle of a step, the first time; run by torchrun."""

from __future__ import annotations

import os
import signal

from trellis import distributed
from trellis.__main__ import main
from trellis.learning.em import EMLearner

AT = 9  # steps before the end
RANK = 1  # of the process that is killed


def step_or_die(self, batch):
    if distributed.rank() == RANK and self.steps == AT and not distributed.was_restarted():
        os.kill(os.getpid(), signal.SIGKILL)
    return step(self, batch)


step = EMLearner.step
if __name__ == "__main__":
    EMLearner.step = step_or_die
    main()

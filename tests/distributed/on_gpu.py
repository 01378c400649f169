"""Train on the GPU as one process of a job, and save the parameters: `on_gpu.py BACKEND FILE`, or `on_gpu.py none FILE`
for a process without a job. Several processes share the GPU; NCCL refuses that, but gloo does not."""

import sys
from unittest import mock

import torch
import torch.distributed as dist
from test_together import CASES, SHORT, train_all

from trellis import distributed
from trellis.distributed.job import Job
from trellis.progress import set_quiet
from trellis.transitions import stripes

TRAINED = {name: CASES[name] | {"device": "cuda"} for name in ("em, streams", "stepwise em", "gradient")}
TRAINED["neural, state dropout"] = CASES["neural, state dropout"] | {"device": "cuda", "dim": 16}
SINGLE = "float32"  # the cases that are also trained by the kernels of training, in float32


def train() -> dict[str, dict[str, torch.Tensor]]:
    import trellis

    found = train_all(TRAINED)
    with mock.patch.object(stripes, "FEWEST", 2):
        model = trellis.train(["a b c d e f g h"] * 100, **SHORT | TRAINED["neural, state dropout"]).model
    found[SINGLE] = dict(model.params.state_dict())
    return {name: {key: value.cpu() for key, value in tensors.items()} for name, tensors in found.items()}


def connect(backend: str) -> None:
    if backend == "none":
        return
    if backend == "gloo":
        with mock.patch.object(dist, "is_nccl_available", return_value=False):
            distributed.join()
        return
    dist.init_process_group("cpu:gloo,cuda:nccl")
    Job.group, Job.store = dist.group.WORLD, dist.distributed_c10d._get_default_store()  # a job of one has none


if __name__ == "__main__":
    set_quiet()
    connect(sys.argv[1])
    torch.save(train() | {"sent": distributed.bytes_sent()}, sys.argv[2])

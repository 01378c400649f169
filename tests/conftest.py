"""Before anything imports Triton: without a GPU its kernels are interpreted. Tests leave the user's cache alone."""

import os
from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
settings.register_profile("trellis", deadline=None)  # a test has no time limit: timings are for benchmarks
settings.load_profile("trellis")


@pytest.fixture(scope="session", autouse=True)
def cache_of_the_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRELLIS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield

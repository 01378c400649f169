"""Every parameterisation of the package does what one must, whichever states a word may come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from corpora import STATES, SUPPORTS, WORDS
from trellis.emissions import Categorical, Partition
from trellis.families.hmm.config import PARAMS, HMMConfig
from trellis.families.hmm.parameters import PartsParams, TableParams
from trellis.families.hmm.parameters.base import find_params
from trellis.testing import check_parameters
from trellis.testing.parameters import can_drop
from trellis.testing.problems import distributions, seeded
from trellis.transitions import Dense

CHOICES: dict[str, dict[str, Any]] = {
    **{name: {"params": name} for name in PARAMS},
    "relu": {"params": "neural", "kernel": "relu"},
    "spelling": {"params": "neural", "spelling": True, "tying": "none"},
    "banded-table": {"params": "lowrank-table", "band": 3},
}


@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("name", CHOICES)
def test_conformance(name: str, support: str) -> None:
    if name == "nested" and support != "even":
        pytest.skip("nested transitions need classes of equal size")
    emission = {"emission": "brown", "classes": 2} if name == "nested" else {}
    config = HMMConfig(states=STATES, dim=4, features=6, init_std=1.0, **emission, **CHOICES[name])
    check_parameters(find_params(config.params).new(WORDS, config, SUPPORTS[support], 3), WORDS)


def test_parts_given_outright() -> None:
    emission = Categorical(distributions(seeded(3), 4, 5).T.log(), None, 4)
    check_parameters(PartsParams(distributions(seeded(1), 4), Dense(distributions(seeded(2), 4, 4)), emission))


def test_whole_states_fall_out_of_classes_or_of_all() -> None:
    kept = {name: can_drop(TableParams(STATES, len(WORDS), support), "state") for name, support in SUPPORTS.items()}
    assert kept == {"full": True, "sets": False, "even": True, "uneven": True}


class Unnormalised(TableParams):
    """Whose rows do not sum to one."""

    def transition(self, draw: Any) -> Dense:
        return Dense(super().transition(draw).dense() * 0.9)


def test_what_fails_is_said() -> None:
    with pytest.raises(AssertionError, match=r"Unnormalised: \d+ of \d+ checks fail(.|\n)*rows of the transition"):
        check_parameters(Unnormalised(4, 5))
    partition = Partition(torch.tensor([0, 1]), [2, 2])
    with pytest.raises(AssertionError, match="restricted to the kept states, then normalised"):
        check_parameters(Unnormalised(4, 2, partition))

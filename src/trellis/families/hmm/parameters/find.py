"""Find parameterisations by name, in this package and in other packages' entry points."""

from trellis.errors import TrellisError
from trellis.extensions import PARAMETERS, entries
from trellis.families.hmm.config import PARAMS, HMMConfig
from trellis.families.hmm.parameters.base import WordParams
from trellis.options import choose
from trellis.registry import resolve


def find_params(name: str) -> type[WordParams]:
    """The parameterisation of that name, built in or from an installed package."""
    path = choose(entries(PARAMETERS) | PARAMS, name, "model.params")
    found = resolve(path)
    if not (isinstance(found, type) and issubclass(found, WordParams)):
        raise TrellisError(f"The entry point {name!r} of {PARAMETERS} names {path!r}, which is not a WordParams.")
    return found


def check_choices(config: HMMConfig) -> None:
    """Raise if the parameterisation does not support the given options."""
    params = find_params(config.params)
    params.options(config)
    if config.dropout not in ("none", *params.drops):
        allowed = " or ".join(f'"{kind}"' for kind in ("none", *params.drops))
        raise TrellisError(
            f'model.params = "{config.params}" does not support model.dropout = "{config.dropout}": use {allowed}.'
        )

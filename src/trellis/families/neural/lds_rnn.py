"""A linear dynamical system as a recurrent network: its steady-state filter is one without the non-linearities."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trellis.families.lds.model import LDS
from trellis.inference.steady import steady_state


def rnn_weights(lds: LDS, reach: float = 0.5) -> dict[str, Tensor]:
    """Weights of h_t = sigmoid(R h_{t-1} + B x_{t-1}), x_t ~ softmax(O h_t), h_0 = 0, with dim + 1 units.

    `embedding` is B' [V, d], `recurrent` R [d, d], `output` O [V, d]. With z the filter's mean in coordinates where it
    has unit variance, h = 1/2 + reach z / 4: the sigmoid works within about `reach` of zero, where it is the line
    1/2 + u / 4 up to u^2 / 12 of u. The last unit is 1/2 after any word and 0 before the first: it takes back the
    other units' halves, and tells the softmax how frequent words are. The forecast of the filter, C A z, changes
    a word's probability by d; log p changes by d / (mu + deviation of d) in the softmax, about one at most."""
    A, tables = lds.parameters.transition, {name: value.cpu().numpy() for name, value in lds.tables.items()}
    forget = steady_state(A, np.eye(lds.dim), tables["information"]).forget
    whiten, colour, step = tables["whiten"], np.linalg.inv(tables["whiten"]), reach / 4
    rows, coordinates = lds.rows.numpy(), lds.emission.coordinates
    seen = (rows >= 0)[:, None]
    forget = whiten @ forget @ colour
    inputs = tables["vectors"] @ tables["gain"] @ whiten
    change = lds.parameters.loadings @ A @ colour / coordinates.scale[:, None]
    change /= coordinates.frequency[:, None] + np.linalg.norm(change, axis=1, keepdims=True)
    level = np.log(np.maximum(lds.vocab.counts, 0.5) / int(lds.counts.sum()))
    change, inputs = (np.where(seen, table[rows], 0.0) for table in (change, inputs))
    size = lds.dim + 1
    recurrent, embedding, output = np.zeros((size, size)), np.zeros((len(rows), size)), np.zeros((len(rows), size))
    recurrent[:-1, :-1], recurrent[:-1, -1] = 4 * forget, -4 * forget.sum(1)
    embedding[:, :-1] = 4 * step * inputs
    output[:, :-1] = change / step
    output[:, -1] = 2 * level - output[:, :-1].sum(1)
    arrays = {"embedding": embedding, "recurrent": recurrent, "output": output}
    return {name: torch.from_numpy(array).float() for name, array in arrays.items()}

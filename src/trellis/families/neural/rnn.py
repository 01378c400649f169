"""Recurrent language models: the LSTM, and the simple recurrent network."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from trellis.corpus import Vocabulary
from trellis.families.lds.model import LDS
from trellis.families.neural.base import NeuralModel, State, at_least_one
from trellis.inference.steady import steady_state


class Recurrent(NeuralModel):
    """A recurrent network. Dropout masks whole units for the length of a window."""

    def embedded(self, words: Tensor) -> Tensor:
        return self.drop(nn.functional.embedding(words, self.embedding))

    def drop(self, features: Tensor) -> Tensor:
        """Dropout of features [B, T, d] with one mask for all steps of a sequence."""
        return nn.functional.dropout1d(features.mT, self.dropout, self.training).mT


class LSTM(Recurrent):
    """An LSTM language model: p(x_t | x_<t) = softmax(E f_t + b), where f_t is the output of the last LSTM layer.

    Parameters
    ----------
    vocab
        The words of the model.
    dim
        The size d of embeddings and layers.
    depth
        The number of layers.
    dropout
        The dropout rate.
    tied
        Whether the output layer shares the embeddings.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="lstm", dim=4, epochs=1).model
    >>> model.log_prob("a b") < 0
    True
    """

    family: ClassVar[str] = "lstm"

    def __init__(self, vocab: Vocabulary, dim: int, depth: int = 2, dropout: float = 0.0, tied: bool = True) -> None:
        super().__init__(vocab, dim, dropout, tied)
        at_least_one(depth=depth)
        self.layers = nn.ModuleList(nn.LSTM(dim, dim, batch_first=True) for _ in range(depth))

    def memory(self, batch: int) -> State:
        zeros = self.embedding.new_zeros(batch, len(self.layers), self.dim)
        return {"hidden": zeros, "cell": zeros}

    def read(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        features, after = self.embedded(words), []
        for number, layer in enumerate(self.layers):
            before = tuple(state[name][:, number].unsqueeze(0).contiguous() for name in ("hidden", "cell"))
            features, memory = run_layer(layer, features, before, lengths)
            features = self.drop(features)
            after.append(memory)
        hidden, cell = (torch.cat(layers).transpose(0, 1) for layers in zip(*after, strict=True))
        return features, {"hidden": hidden, "cell": cell}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "depth": len(self.layers), "dropout": self.dropout, "tied": self.tied}


class RNN(Recurrent):
    """The simple recurrent network of Mikolov (2012): h_t = sigmoid(A h_{t-1} + B x_{t-1}), x_t ~ softmax(C h_t).

    h_0 is zero. The weights are A = `recurrent`, B = `embedding` transposed, and C = `output`. Without the
    nonlinearities, the network would be the filter of a linear dynamical system. With transition F, emission H and gain
    K, that filter has A = F - K H F, B = K and C = H F.

    Parameters
    ----------
    vocab
        The words of the model.
    dim
        The size of h_t.
    dropout
        The dropout rate.

    Examples
    --------
    >>> model = trellis.train(["a b", "b a"] * 20, family="rnn", dim=4, epochs=1).model
    >>> model.log_prob("a b") < 0
    True
    """

    family: ClassVar[str] = "rnn"

    def __init__(self, vocab: Vocabulary, dim: int, dropout: float = 0.0) -> None:
        super().__init__(vocab, dim, dropout, tied=False, bias=False)
        self.recurrent = nn.Parameter(torch.randn(dim, dim) * dim**-0.5)

    @classmethod
    def from_lds(cls, lds: LDS, dropout: float = 0.0, reach: float = 0.5) -> RNN:
        """A network of dim + 1 units initialised from the filter of a linear dynamical system (see `rnn_weights`)."""
        model = cls(lds.vocab, lds.dim + 1, dropout)
        model.load_state_dict(rnn_weights(lds, reach))
        return model

    def memory(self, batch: int) -> State:
        return {"hidden": self.embedding.new_zeros(batch, self.dim)}

    def read(self, words: Tensor, state: State, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        hidden = [state["hidden"]]
        for inputs in self.embedded(words).unbind(1):
            hidden.append(torch.addmm(inputs, hidden[-1], self.recurrent.T).sigmoid())
        path = torch.stack(hidden, 1)  # [B, 1 + T, d]
        ends = torch.full_like(words[:, 0], words.shape[1]) if lengths is None else lengths
        last = path.gather(1, ends[:, None, None].expand(-1, 1, self.dim))[:, 0]
        return self.drop(path[:, 1:]), {"hidden": last}

    def settings(self) -> dict[str, Any]:
        return {"dim": self.dim, "dropout": self.dropout}


def run_layer(
    layer: nn.Module, inputs: Tensor, before: tuple[Tensor, ...], lengths: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The outputs [B, T, d] of a recurrent layer, and its memory after each sequence's last step: tensors [1, B, d]."""
    if lengths is None:
        return layer(inputs, before)
    packed = pack_padded_sequence(inputs, lengths.clamp(min=1).cpu(), batch_first=True, enforce_sorted=False)
    outputs, after = layer(packed, before)
    return pad_packed_sequence(outputs, batch_first=True, total_length=inputs.shape[1])[0], after


def rnn_weights(lds: LDS, reach: float = 0.5) -> dict[str, Tensor]:
    """Weights of h_t = sigmoid(R h_{t-1} + B x_{t-1}), x_t ~ softmax(O h_t), h_0 = 0, with dim + 1 units.

    `embedding` is B' [V, d], `recurrent` R [d, d], `output` O [V, d]. Let z be the filter's mean in coordinates where
    it has unit variance. Then h = 1/2 + reach z / 4, because the sigmoid of a small u is nearly 1/2 + u / 4. The last
    unit is 1/2 after any word and 0 before the first. It cancels the offsets of the other units and provides the word
    frequencies. The LDS predicts that the probability mu of a word changes by d = C A z; log p changes by
    d / (mu + deviation of d), at most about 1."""
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

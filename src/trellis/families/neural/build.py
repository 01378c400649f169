"""Build untrained networks from their configuration."""

from dataclasses import replace

from trellis.config import RunConfig, load_config
from trellis.corpus import Corpus
from trellis.errors import TrellisError
from trellis.families.lds.model import LDS
from trellis.families.neural.feedforward import FeedForward
from trellis.families.neural.rnn import LSTM, RNN
from trellis.models.files import load
from trellis.training.fit import Fitted, Job, by_steps
from trellis.training.run import train

TIED = {"all": True, "none": False}
START = "start"  # the folder of the LDS trained for initialisation


def feedforward(run: RunConfig, corpus: Corpus) -> FeedForward:
    size = run.model
    return FeedForward(corpus.vocab, size.dim, size.depth, size.net_dropout, size.window, TIED[size.tying], size.hidden)


def lstm(run: RunConfig, corpus: Corpus) -> LSTM:
    size = run.model
    return LSTM(corpus.vocab, size.dim, size.depth, size.net_dropout, TIED[size.tying])


def fit_rnn(job: Job) -> Fitted:
    """Train a recurrent network from scratch or from the filter of an LDS; an LDS given as a TOML file is trained
    first, in a subfolder, on the same device."""
    size, vocab = job.config.model, job.corpus.vocab
    if not size.init_from:
        return by_steps(job, lambda run, corpus: RNN(vocab, size.dim, size.net_dropout))
    lds = first_lds(job) if size.init_from.endswith(".toml") else load(size.init_from, LDS)
    if lds.vocab.words != vocab.words:
        raise TrellisError(f"model.init_from is {size.init_from}: it must be an LDS trained on the same vocabulary.")
    return by_steps(job, lambda run, corpus: RNN.from_lds(lds, size.net_dropout))


def first_lds(job: Job) -> LDS:
    """Train the LDS described by the TOML file in `model.init_from`."""
    config = job.config
    start = replace(load_config(config.model.init_from), device=config.device, seed=config.seed)
    model = train(start, job.folder and job.folder / START, resume=True).model
    if not isinstance(model, LDS):
        raise TrellisError(
            f"model.init_from is {config.model.init_from}, which describes a {model.family}, not an LDS."
        )
    return model

"""A complete run: text -> vocabulary -> batches -> model -> training -> scores -> files."""

import json
import logging
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import torch

from trellis import __version__, distributed
from trellis.config import RunConfig, load_config, seconds_of
from trellis.corpus import Corpus
from trellis.corpus.cache import trust_source
from trellis.devices import check_memory, choose_device, describe_device
from trellis.errors import TrellisError, within_limits
from trellis.models.base import PersistedModel
from trellis.models.files import CONFIG, FILE, LAST, UNTRAINED, save_model
from trellis.options import to_toml
from trellis.report.card import write_card
from trellis.report.page import write_report
from trellis.storage import as_path, claimed, clear_partial, write_text
from trellis.tasks.scores import Scores
from trellis.training.callbacks import Callback
from trellis.training.fit import Job
from trellis.training.teacher import about_teacher

RESULTS, SCHEMA, TEST = "results.json", 1, "test"
JOB = ".job"  # the file that names the job of several processes
COPIES, FLOAT = 3, 4  # parameters, counts (or gradients), and new parameters (or moments); bytes of a float32
logger = logging.getLogger(__name__)
FROZEN = "data", "model", "batches"  # sections that must not change on resuming


@dataclass(frozen=True)
class Trained:
    """The result of `train`.

    Parameters
    ----------
    model
        The trained model.
    scores
        Its scores; None if training was interrupted. In a job of several processes, only the first process has scores.
    history
        The metrics of every evaluation, as in metrics.jsonl.
    run
        The run folder, if there is one.
    training
        Steps, epochs, tokens, seconds and the outcome.

    Examples
    --------
    >>> trained = trellis.train(["a b", "b a"] * 20, states=2, epochs=3)
    >>> [line["epoch"] for line in trained.history]
    [1, 2, 3]
    """

    model: PersistedModel
    scores: Scores | None
    history: list[dict[str, Any]] = field(default_factory=list, repr=False)
    run: Path | None = None
    training: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def interrupted(self) -> bool:
        """Whether training was interrupted, so that the model is not finished."""
        return self.training.get("outcome") == "interrupted"


def train(
    config: RunConfig,
    folder: str | Path | None = None,
    resume: bool = False,
    data: Any = None,
    callbacks: Sequence[Callback] = (),
    command: str = "",
    report: bool = True,
) -> Trained:
    """Train and evaluate the model that `config` describes, and write everything to `folder`, if given.

    `data`, a text passed from Python, replaces the source named in `config`; `command` is the command line, for the
    report. Without `report`, no report is written; for 10^5 states, a report takes minutes. The processes of a job
    (see `trellis.distributed`) train one model together; the first process evaluates it and writes the files. After a
    restart by torchrun, the run is resumed."""
    distributed.connect()
    family, device = config.family, choose_device(config.device)
    if data is None:
        trust_source(config.data.source)
    folder = None if folder is None else as_path(folder)
    resume = resume or distributed.from_first(lambda: was_begun(folder))
    with distributed.one_at_a_time():
        corpus = family.load("read")(config, data)
    if not config.eval.test:
        corpus = replace(corpus, splits={name: split for name, split in corpus.splits.items() if name != TEST})
    before = folder if resume else None
    check_size(config, corpus, device)  # before `with_choice`, which trains a few steps
    with within_limits():
        config = with_order(distributed.from_first(lambda: with_choice(config, corpus, device, before)), corpus)
    check_size(config, corpus, device)
    with within_limits(), nullcontext() if folder is None else run_folder(folder, config, resume):
        begun = time.perf_counter()
        about = {"corpus": corpus.description, "order": config.batches.order}
        about["run"] = {"command": command, "seed": config.seed, "device": describe_device(device)} | versions()
        about |= {"data": asdict(config.data)} if data is None else {}
        about |= {"licence": config.data.licence} if config.data.licence else {}
        about |= about_teacher(config)
        if isinstance(corpus, Corpus):
            about |= {"reader": corpus.recipe.reader, "column": corpus.recipe.column}
        fitted = family.load("fit")(Job(config, corpus, device, folder, resume, callbacks, about))
        model, state = fitted.model, fitted.state
        state.seconds, state.outcome = state.seconds or time.perf_counter() - begun, state.outcome or "fitted"
        if state.interrupted or not distributed.is_first():
            return Trained(model, None, state.history, folder, state.summary())
        scores = family.load("evaluate")(model, corpus, config)
        if teacher := about.get("teacher"):
            scores.rows[-1]["model"] += f" taught by {teacher['family']}"
        model.about = about | {"training": state.summary(), "scores": scores.values}
        trained = Trained(model, scores, state.history, folder, state.summary())
        if folder is not None:
            save(trained, folder, report)
    return trained


def check_size(config: RunConfig, corpus: Any, device: str) -> None:
    """Raise if training certainly needs more memory than there is: COPIES of the parameters, and a batch."""
    model, is_text = config.model, isinstance(corpus, Corpus)
    words, tokens = (len(corpus.vocab), corpus["train"].tokens.size) if is_text else (0, 0)
    values = COPIES * model.num_values(words) + min(tokens, config.batches.size) * model.values_per_token(words)
    check_memory(FLOAT * values, f"Training this {model.family}", "use a smaller model or smaller batches", device)


def with_choice(config: RunConfig, corpus: Any, device: str, before: Path | None) -> RunConfig:
    """The configuration with the options that the family chooses; a resumed run keeps the recorded options. The budget
    also limits the training time."""
    if config.budget and not config.is_set("train.max_seconds"):
        config = config.with_options({"train.max_seconds": seconds_of(config.budget)})
    if not config.family.choose:
        return config
    if before is not None and (before / CONFIG).exists():
        return config.filled_from(load_config(before / CONFIG))
    return config.family.load("choose")(config, corpus, device)


def with_order(config: RunConfig, corpus: Any) -> RunConfig:
    """The configuration with the order of the batches; if the reader determines the order, it is logged."""
    own = corpus.order if isinstance(corpus, Corpus) else ""
    if own and not config.batches.order:
        logger.info(f"batches.order = {own}: the records of a {corpus.recipe.reader} file are independent sequences")
    return config.ordered(own)


def versions() -> dict[str, str]:
    """The versions of the software."""
    return {"trellis": __version__, "torch": torch.__version__, "python": platform.python_version()}


def save(trained: Trained, folder: Path, report: bool) -> None:
    """Write the model, its results, a report if wanted, and a model card."""
    model, about, scores = trained.model, trained.model.about, cast(Scores, trained.scores)
    save_model(folder / FILE, model)
    results = {"schema": SCHEMA, "family": model.family, "corpus": about["corpus"], "training": trained.training}
    results["run"] = about["run"]
    write_text(folder / RESULTS, json.dumps(results | {"scores": asdict(scores)}, indent=1) + "\n")
    if report:
        write_report(folder, model, scores)
    write_card(folder, model, scores)
    (folder / UNTRAINED).unlink(missing_ok=True)


@contextmanager
def run_folder(folder: Path, config: RunConfig, resume: bool) -> Iterator[None]:
    """Lock the run folder and write its configuration."""
    if not distributed.is_first():
        yield
        return
    with claimed(folder):
        check_folder(config, folder, resume)
        clear_partial(folder)
        write_text(folder / CONFIG, to_toml(config))
        if distributed.size() > 1:
            write_text(folder / JOB, distributed.job())
        yield


def was_begun(folder: Path | None) -> bool:
    """Whether an earlier attempt of this job, which torchrun has restarted, began the run in the folder."""
    known = folder is not None and distributed.was_restarted() and (folder / JOB).exists()
    return known and (cast(Path, folder) / JOB).read_text() == distributed.job()


def check_folder(config: RunConfig, folder: Path, resume: bool) -> None:
    """Raise if the folder has a run that would be overwritten, or resumed with other `frozen_options`."""
    if not (folder / FILE).exists() and not any(folder.rglob(LAST)):
        return
    if not resume:
        raise TrellisError(f"{folder} already contains a training run; resume it, or choose another folder.")
    before, now = (frozen_options(one) for one in (load_config(folder / CONFIG), config))
    for name in before | now:
        then, wanted = before.get(name), now.get(name)
        if then != wanted:
            was = f"{folder} was trained with {name} = {then!r}, not {wanted!r}"
            raise TrellisError(f"{was}; resume with that value, or choose another folder.")


def frozen_options(config: RunConfig) -> dict[str, Any]:
    """The options that must not change when a run is resumed, by dotted name."""
    options = {f"{part}.{key}": value for part in FROZEN for key, value in asdict(getattr(config, part)).items()}
    fixed = {f"train.{key}": getattr(config.train, key, None) for key in ("learner", "teacher", "teacher_tokens")}
    return options | {"seed": config.seed} | fixed

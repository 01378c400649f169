"""The constructor arguments of the HMM estimators: types and meanings, from which docstrings get their sections."""

import inspect
from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)

ARGUMENTS = {  # K states, V symbols, F features
    "n_components": ("int", "The number K of states."),
    "startprob_prior": ("float or array [K]", "Parameters of the Dirichlet prior of `startprob_`; 1: no prior."),
    "transmat_prior": (
        "float or array [K, K]",
        "Parameters of the Dirichlet priors of the rows of `transmat_`; 1: no prior.",
    ),
    "emissionprob_prior": (
        "float or array [K, V]",
        "Parameters of the Dirichlet priors of the rows of `emissionprob_`; 1: no prior.",
    ),
    "lambdas_prior": ("float or array [K, F]", "Shape of the gamma prior of `lambdas_`; 0: no prior."),
    "lambdas_weight": ("float or array [K, F]", "Rate of the gamma prior of `lambdas_`."),
    "n_features": ("int or None", "The number V of symbols; None: the number found in the data."),
    "n_trials": ("int, array or None", "The sum of each row of X, or an array of one sum per row; None: taken from X."),
    "n_mix": ("int", "The number of normal distributions of each state."),
    "covariance_type": (
        "str",
        'The form of a covariance matrix: "spherical", "diag", "full", or "tied" (one matrix for all states).',
    ),
    "min_covar": ("float", "Added to the initial variances."),
    "means_prior": ("float or array [K, F]", "Mean of the normal prior of `means_`."),
    "means_weight": ("float or array [K, F]", "Precision of the normal prior of `means_`; 0: no prior."),
    "covars_prior": (
        "float or array",
        "Prior of the covariances: inverse gamma (spherical, diag) or inverse Wishart (full, tied).",
    ),
    "covars_weight": (
        "float",
        "The second parameter of the prior set by `covars_prior`: its strength. Each unit above 1 (spherical, diag) or "
        "F (full, tied) counts as one observation.",
    ),
    "weights_prior": ("float or array", "Parameters of the Dirichlet priors of `weights_`; 1: no prior."),
    "beta_prior": ("array [K] or None", "Weight of the prior of the means, as a number of observations; None: 1."),
    "dof_prior": ("float, array [K] or None", "Degrees of freedom of the Wishart prior; None: the number of features."),
    "scale_prior": ("array or None", "Scale of the Wishart prior, shaped like a covariance; None: 1e-3."),
    "n_dims": ("int", "The length of the vectors u and z."),
    "emission_dims": ("int or None", "The length of the vectors v and w; None: `n_dims`."),
    "kernel": ("str", 'The kernel k: "softmax", "normAbsLin", "sigmoid", "relu" or "rbf".'),
    "emission_kernel": ("str or None", "The kernel of the emissions; None: `kernel`."),
    "optimizer": ("str", 'The optimiser of the vectors: "adam", "sgd" or "lbfgs".'),
    "learning_rate": ("float", "The learning rate of the optimiser."),
    "mstep_epochs": ("int", "Gradient steps in each M-step."),
    "learning": (
        "str",
        '"em", or "cooccurrence": fit the joint distribution of two adjacent symbols.',
    ),
    "loss": ("str", 'The distance between joint distributions ("cooccurrence"): "frobenius" or "kl".'),
    "penalty": ("float", 'The weight of log|det p(z_t, z_t+1)| in the loss of "cooccurrence".'),
    "n_epochs": ("int", 'Gradient steps of "cooccurrence".'),
    "algorithm": (
        "str",
        'What `decode` and `predict` return: the most probable path ("viterbi"), or the most probable state of each '
        'step ("map").',
    ),
    "random_state": ("int, RandomState or None", "The seed or generator of initial values and samples."),
    "n_iter": ("int", "The maximum number of iterations."),
    "tol": ("float", "Training stops if an iteration gains less log-likelihood than this."),
    "verbose": ("bool", "Print the log-likelihood of each iteration to standard error."),
    "init_params": (
        "str",
        "Parameters to initialise before training, by letter. Others are initialised only if they are not set.",
    ),
    "implementation": ("str", '"log" or "scaling", for compatibility with hmmlearn; it makes no difference.'),
    "missing_values": (
        "object",
        "A value that marks missing observations; None, pandas.NA and masked entries always do.",
    ),
    "handle_unknown": (
        "str",
        'Symbols that `fit` has not seen raise an "error" or are equally probable in all states ("uniform").',
    ),
    "device": ("str", '"cpu", "cuda", or "auto": the GPU if there is one.'),
    "sequence_id": ("str or None", "If X is a DataFrame: the column that identifies the sequence of each row."),
    "transmat_mask": (
        "bool array [K, K] or function",
        "The allowed transitions. Instead of an array, pass a function of `n_components`, such as `left_right`.",
    ),
    "startprob_mask": ("bool array [K] or function", "States in which a sequence may start; see `first_state`."),
    "tied_transitions": (
        "labels [K] or [K, K]",
        "Labels [K]: states with equal labels share a row of `transmat_`. Labels [K, K]: transitions with equal "
        "labels have the same probability.",
    ),
    "tied_emissions": ("labels [K]", "States with equal labels share an emission."),
    "frozen_transitions": (
        "list of states, or bool array [K, K]",
        "Rows of `transmat_`, or single transitions, that are not trained.",
    ),
    "frozen_emissions": ("list of states", "States whose emission is not trained."),
    "sticky": ("float", "An additional pseudocount of each transition from a state to itself."),
    "n_init": ("int", "The number of random restarts; the best is kept."),
    "early_stopping": ("bool", "Stop when the log-likelihood of held-out sequences no longer improves."),
    "validation_fraction": ("float", "The fraction of the sequences to hold out."),
    "n_iter_no_change": ("int", "Iterations without a better held-out log-likelihood before training stops."),
    "learning_decay": ("float", "Call k = 2, 3, ... of `partial_fit` has the step size (k + 1) ** -learning_decay."),
}
VARIATIONAL = {  # of estimators with posteriors over their parameters
    "startprob_prior": "Parameters of the Dirichlet prior of the start distribution; None: 1 / n_components.",
    "transmat_prior": "Parameters of the Dirichlet priors of the transitions; None: 1 / n_components.",
    "tol": "Training stops if an iteration raises the lower bound by less than this.",
}


def documented(**own: str) -> Callable[[Class], Class]:
    """A class decorator: add the section "Parameters" to the docstring, in numpydoc's form. `own` replaces the meanings
    of some parameters."""

    def decorate(cls: Class) -> Class:
        letters = ", ".join(f"{letter} (`{name.lstrip('_')}`)" for letter, name in getattr(cls, "letters", {}).items())
        absent = dict.fromkeys(getattr(cls, "unsupported", ()), "Not supported.")
        meanings = own | absent | {"params": f"Parameters to train, one letter each: {letters}."}
        lines = ["Parameters", "----------"]
        for one in inspect.signature(cls).parameters.values():
            kind, meaning = ARGUMENTS.get(one.name, ("str", ""))
            lines += [f"{one.name} : {kind}, default {one.default!r}", f"    {meanings.get(one.name, meaning)}"]
        text, mark, example = inspect.cleandoc(cls.__doc__ or "").partition(">>>")
        examples = ["", "Examples", "--------", mark + example] if mark else []
        cls.__doc__ = "\n".join([text.rstrip(), "", *lines, *examples])
        return cls

    return decorate

"""
Proteins
========

A protein is a sequence of amino acids, written as letters. This tutorial trains an HMM on a FASTA file, finds segments
of proteins with it, and builds a classifier from two HMMs.

**The proteins are made up.** The script generates them, so that it runs without downloads and the right answer is
known. Inside a membrane, most residues are hydrophobic (A, F, I, L, M, V, W). Outside of it, most are charged or polar.
With real data, only the path of the file changes.
"""

from pathlib import Path
from tempfile import mkdtemp

import matplotlib.pyplot as plt
import numpy as np

import trellis

random = np.random.default_rng(0)
RESIDUES = np.array([*"ACDEFGHIKLMNPQRSTVWY"])
HYDROPHOBIC = np.isin(RESIDUES, [*"AFILMVW"])


def composition(share: float) -> np.ndarray:
    """Frequencies of residues with this share of hydrophobic ones."""
    return np.where(HYDROPHOBIC, share / HYDROPHOBIC.sum(), (1 - share) / (~HYDROPHOBIC).sum())


def protein(segments: int) -> tuple[str, np.ndarray]:
    """A made-up protein that crosses the membrane `segments` times, and where it is inside the membrane."""
    parts = [(False, random.integers(15, 40))]
    for _ in range(segments):
        parts += [(True, random.integers(18, 25)), (False, random.integers(10, 40))]
    inside = np.repeat([where for where, _ in parts], [size for _, size in parts])
    letters = [random.choice(RESIDUES, p=composition(0.85 if here else 0.25)) for here in inside]
    return "".join(letters), inside


# %%
# A FASTA file has one sequence per record. Trellis reads it by its suffix, one token per letter.

folder = Path(mkdtemp())
proteins = [protein(segments=random.integers(1, 5)) for _ in range(200)]
fasta = folder / "membrane.fasta"
fasta.write_text("".join(f">protein{i}\n{sequence}\n" for i, (sequence, _) in enumerate(proteins)))
print(fasta.read_text()[:120])

# %%
# Train
# -----
# Records are independent sequences, so each starts anew.

trained = trellis.train(fasta, states=4, epochs=30, learner="em", device="cpu")
print({name: round(value, 2) for name, value in trained.scores.values.items() if name in ("valid", "test")})
for row in trained.scores.rows:
    print(f"{row['model']:14} {row['test']:6.2f}")

# %%
# Look at the states
# ------------------
# Training saw no labels, but one of the states prefers hydrophobic residues: it is the inside of the membrane.

model = trained.model
states = {state.state: dict(state.words) for state in model.states(4, words=20)}
hydrophobic = {z: sum(words.get(letter, 0.0) for letter in RESIDUES[HYDROPHOBIC]) for z, words in states.items()}
membrane = [z for z, share in hydrophobic.items() if share > 0.5]
for z, words in states.items():
    print(f"state {z}: {hydrophobic[z]:4.0%} hydrophobic;", " ".join(list(words)[:8]))

# %%
# Segments of a new protein
# -------------------------
# The posterior probability of the membrane states, given the whole sequence, finds the segments. The true segments are
# shown in grey.

sequence, inside = protein(segments=3)
posterior = model.posterior(sequence)[: len(sequence), membrane].sum(1)

with trellis.figure_style("page", height=1.8):
    figure, axes = plt.subplots()
    axes.fill_between(range(len(inside)), inside, step="mid", color="0.88", label="in the membrane (truth)")
    axes.plot(posterior, label="p(membrane | sequence)")
    axes.set(xlabel="residue", ylim=(0, 1.02))
    axes.legend(loc="lower right")

print(f"residues labelled correctly: {((posterior > 0.5) == inside).mean():.0%}")

# %%
# Membrane protein or not?
# ------------------------
# Train a second model on proteins without segments. The difference of the two log-likelihoods classifies a new protein:
# with equal priors it is the log odds of the two classes.

other = trellis.train([[*protein(0)[0] * 3] for _ in range(200)], states=2, epochs=10, learner="em", device="cpu").model
for name, segments in {"crosses once": 1, "crosses twice": 2, "soluble": 0}.items():
    new = protein(segments)[0]
    odds = model.log_prob(new) - other.log_prob([[*new]])[0]
    print(f"{name:14} log odds {odds:7.1f} ->", "membrane" if odds > 0 else "soluble")
plt.show()

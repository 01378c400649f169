"""
A language model of your own text
=================================

This tutorial trains a hidden Markov language model on a text file, looks at what its hidden states have learned, and
asks it questions about sentences.

Any text will do: a novel, chat logs, abstracts. Here it is the language reference that comes with Python, with one
paragraph per line. Replace ``my_text.txt`` by a file of your own.
"""

from pathlib import Path
from pydoc_data.topics import topics
from tempfile import mkdtemp

import matplotlib.pyplot as plt

import trellis

folder = Path(mkdtemp())
paragraphs = [" ".join(block.split()) for topic in topics.values() for block in topic.split("\n\n")]
lines = dict.fromkeys(line for line in paragraphs if 30 < len(line) < 400 and line[0].isalpha())
text = folder / "my_text.txt"
text.write_text("\n".join(lines), encoding="utf-8")
print(len(lines), "lines,", sum(len(line.split()) for line in lines), "words")

# %%
# Train
# -----
# `states` is the number of hidden states. Without it, Trellis would choose a number from the text and the speed of
# the machine, and train a larger model for several minutes. Five per cent of the text is held out for validation and
# five per cent for testing. `order="sentences"` treats lines as independent, and `tokens` is the size of a batch: a
# small text needs small batches. The second argument is a folder, to which everything is written: the model, its
# metrics, a report and a model card.

trained = trellis.train(
    text,
    folder / "run",
    states=64,
    epochs=30,
    order="sentences",
    tokens=2048,
    em_power=0.6,
    pseudocount=1e-3,
    tokenizer="words",
    lower=True,
    device="cpu",
)
model = trained.model
print(model)

# %%
# The result comes with n-gram models of the same text, for comparison. Lower perplexity is better. With 64 states, the
# HMM is slightly better than the bigram model. It has learned something that the 5-gram model has not: the mixture of
# the two is better than either. :doc:`Larger HMMs <06_large_hmms>` are better on their own.

for row in trained.scores.rows:
    print(f"{row['model']:14} {row['test']:7.1f}")

# %%
# The curves show whether more epochs would help.

with trellis.figure_style():
    trellis.plot_training(trained)

# %%
# Look at the states
# ------------------
# A state is a distribution over words. `<eos>` is the end of a line, and `<unk>` stands for words that occur only once
# in the training text. The most informative states are those whose words differ most from the average.

for state in model.states(8, words=6):
    print(f"{state.occupancy:5.1%}", " ".join(word for word, _ in state.words))

# %%
# The trellis of a sentence shows which state produced each word. The area of a circle is the posterior probability of a
# state given the whole sentence, and rings mark the Viterbi path.

with trellis.figure_style("page", height=3.0):
    trellis.plot_trellis(model, "the value of the expression is a string .")

# %%
# Ask questions
# -------------
# All answers are exact: they sum over all sequences of states.

print("log p =", round(model.log_prob("the value of the expression is a string ."), 2))
print("next:", [(word, round(prob, 3)) for word, prob in model.predict("the value of the", n=4)])

gap = model.infill("the ___ of the expression is a string .", n=4)
print("gap: ", [(word, round(prob, 3)) for word, prob in gap.gaps[0]])

for sentence in model.sample(3, seed=1, max_tokens=20):
    print("-", sentence)

# %%
# Keep it
# -------
# The run folder can be loaded again, in Python or on the command line (``trellis infill run "the ___ of"``).

print(trellis.load(folder / "run"))
print(sorted(path.name for path in (folder / "run").iterdir()))
plt.show()

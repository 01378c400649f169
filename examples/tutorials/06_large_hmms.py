"""
Large HMMs, on a GPU
====================

An HMM with many states is a much better language model than one with a few hundred. Two ideas make this affordable:

* **Classes.** Words are clustered (Brown clustering), and each state can emit the words of one class only. At each
  token, only the states of its class are *live*. With 65,536 states in 128 classes, inference computes 512 x 512 blocks
  of the transition matrix instead of 65,536 x 65,536.
* **Nets.** Transition and emission probabilities are computed by small networks from embeddings of states and words,
  and trained by gradient descent with state dropout.

This page trains a small version on a CPU, which runs in seconds. The command for the full size is at the end.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt

import trellis

lines = [" ".join(block.split()).lower() for topic in topics.values() for block in topic.split("\n\n")]
text = [*dict.fromkeys(line for line in lines if 30 < len(line) < 400 and line[0].isalpha())]
print(len(text), "paragraphs")

# %%
# The small version
# -----------------
# 1,024 states in 32 classes of words, compared with an HMM whose 64 states can all emit every word. With
# `params="nested"`, a net chooses the class of the next state first, then the state.

shared = {"tokenizer": "words", "device": "cpu", "eval": {"ngram": 0}}
plain = trellis.train(
    text, states=64, epochs=30, order="sentences", tokens=2048, em_power=0.6, pseudocount=1e-3, **shared
)
large = trellis.train(
    text,
    states=1024,
    params="nested",
    dim=64,
    emission="brown",
    classes=32,
    dropout="state",
    dropout_rate=0.3,
    learner="gradient",
    lr=0.01,
    schedule="cosine",
    epochs=10,
    lanes=16,
    window=32,
    **shared,
)
for name, trained in {"64 states, all words": plain, "1,024 states, 32 classes": large}.items():
    parameters = trained.model.num_parameters()
    print(f"{name:24} {parameters:9,} parameters, test perplexity {trained.scores['test']:.1f}")

# %%

with trellis.figure_style():
    trellis.plot_training({"64 states": plain, "1,024 states": large})

# %%
# Inference is exact for both, and every query works as for a small model:

print(large.model.predict("the value of the", n=4))

# %%
# The full size
# -------------
# On one GPU (an NVIDIA H200 here), this trains the model of the front page on the Penn Treebank: 65,536 states, 113.6
# validation and 105.8 test perplexity, in 59 seconds. The TOML file is in the repository.
#
# .. code-block:: console
#
#    $ trellis train experiments/scaling_hmm_lm/ptb-64k-128.toml --run runs/ptb-64k
#
# For a text of your own, ``trellis train --data my_text.txt --device cuda`` chooses the number of states, the classes
# and the batches from the text and from the speed of the GPU; ``--budget 5m`` limits the time. In Python:
#
# .. code-block:: python
#
#    trained = trellis.train("my_text.txt", device="cuda", budget="5m", run="runs/mine")
#
# A model trained on a GPU can be loaded on a CPU, and the other way round. :doc:`Very large HMMs </large-hmm>`
# describes the training step and what each part contributes.
plt.show()

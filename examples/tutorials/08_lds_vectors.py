"""
Word vectors from a linear dynamical system
===========================================

A linear dynamical system (LDS) gives every token a vector that depends on its context. It is learned from counts of
word pairs, in one pass over the text, and its vectors are the means of a Kalman smoother. Inference is exact; learning
is approximate (:doc:`/lds`).

The text is Python's language reference, which is small: expect patterns, not quality.
"""

from pydoc_data.topics import topics

import matplotlib.pyplot as plt
import numpy as np

import trellis

lines = [" ".join(block.split()).lower() for topic in topics.values() for block in topic.split("\n\n")]
text = [*dict.fromkeys(line for line in lines if 30 < len(line) < 400 and line[0].isalpha())]

trained = trellis.train(text, family="lds", dim=20, epochs=8, horizon=4, blocks=3, tokenizer="words")
model = trained.model
print(model)

# %%
# An LDS has no perplexity, because it treats one-hot words as Gaussian vectors. Its score is the *gain* over a model
# without memory, in nats per token.

for row in trained.scores.rows:
    print(row)

# %%
# Vectors of types and of tokens
# ------------------------------
# `"type"` vectors do not depend on the context. Which words are near each other?

words = ["list", "string", "if", "for", "class", "function", "int", "is", "are", "returns", "the", "a"]
vectors = np.concatenate([model.embed(word, "type") for word in words])
near = vectors @ vectors.T
for row, word in enumerate(words[:6]):
    order = [other for other in np.argsort(-near[row]) if other != row][:3]
    print(f"{word:10}", " ".join(f"{words[other]} ({near[row, other]:.2f})" for other in order))

# %%
# In context, the same word has different vectors. `smoothed` uses the whole sentence, and
# `filtered` uses only the words so far.

uses = ["a list of names", "the class is defined", "return a list", "in a class definition", "the list is empty"]
places = [(use, place) for use in uses for place, word in enumerate(use.split()) if word in ("list", "class")]
tokens = np.stack([model.embed(use)[place] for use, place in places])
print((tokens @ tokens.T).round(2))

# %%
# A picture
# ---------
# The plot shows contextual vectors of some frequent words, projected on their two main directions. Each word has its
# own colour.

sentences = [line for line in text if len(line) < 150][:400]
chosen = ["the", "of", "is", "object", "and"]
embedded = model.embed(sentences)
points = {word: [] for word in chosen}
for sentence, rows in zip(sentences, embedded, strict=True):
    for word, row in zip(model.vocab.split(sentence), rows, strict=False):
        if word in points:
            points[word].append(row)
everything = np.concatenate([np.array(rows) for rows in points.values()])
middle = everything.mean(0)
axes_of_variation = np.linalg.svd(everything - middle, full_matrices=False)[2][:2]

with trellis.figure_style("page", height=3.0):
    figure, axes = plt.subplots()
    for word, rows in points.items():
        flat = (np.array(rows) - middle) @ axes_of_variation.T
        axes.scatter(*flat.T, s=5, alpha=0.5, label=word)
    axes.set(xlabel="first direction", ylabel="second direction")
    axes.legend()

# %%
# On the command line: ``trellis train --model lds --data my_text.txt --run lds``, ``trellis embed lds -o x.npy <
# text``, ``trellis neighbours lds "the list is empty" --word list``.
plt.show()

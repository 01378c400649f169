"""
Constrained generation
======================

A language model usually writes what it likes. With an HMM, sentences that *must* satisfy a constraint can be sampled
exactly: not by trying again and again, and not greedily, but from p(sentence | constraint). The probability of the
constraint itself comes for free.

The model is `demo`, the small HMM of Python's documentation that is part of the package.
"""

import matplotlib.pyplot as plt

import trellis
from trellis.constraints import all_of, banned, begins, contains, ends, length, positions, regex, template

model = trellis.load("demo")
known = banned("<unk>") & ends(".")  # complete sentences of known words

# %%
# Keywords
# --------

found = model.constrain(all_of("file", "string") & known, least=5, most=12)
print(f"p(constraint) = {found.prob:.2g}")
print("best:  ", found.best().text)
for sentence in found.sample(3):
    print("sample:", sentence)

# %%
# Forms and patterns
# ------------------
# ``___`` is a gap of one word, ``___{1,2}`` of one or two. A regular expression describes the text of the sentence.

for constraint in (template("return the ___{1,2} of the ___ ."), regex(r"(return|returns) .*(list|string)\.") & known):
    found = model.constrain(constraint & banned("<unk>"), most=10)
    print(found.best().text, "|", *found.sample(2), sep="\n    ")

# %%
# Constraints are combined with ``&``, ``|`` and ``~``. The next one is an acrostic: word n begins with
# letter n of a name.

letters = positions([lambda word, letter=letter: word.startswith(letter) for letter in "trellis"])
print(model.constrain(letters & banned("<unk>"), most=7).sample(2))

# %%
# Probabilities of events
# -----------------------
# How likely is it that a sentence mentions a word? Counting in samples would be noisy; this is exact.

short = model.constrain(length(4, 12), most=12)
for word in ("list", "string", "function", "file"):
    both = model.constrain(length(4, 12) & contains(word), most=12)
    print(f"p({word!r} in a sentence of 4 to 12 words) = {both.prob / short.prob:.3f}")

# %%
# The sampler agrees with the exact probability of a constraint, as it must:

samples = short.sample(2000)
exact = model.constrain(length(4, 12) & begins("the"), most=12).prob / short.prob
share = sum(sentence.split()[0].lower() == "the" for sentence in samples) / len(samples)
print(f"begins with 'the': exact {exact:.4f}, in 2,000 samples {share:.4f}")

# %%
# The automaton behind it
# -----------------------
# A constraint is a finite automaton over words. Inference runs on the product of the automaton and the HMM. It also
# gives the distribution of sentence lengths, here under two constraints:

with trellis.figure_style():
    figure, axes = plt.subplots()
    for name, constraint in {"any": known, "contains 'a list'": known & contains("a list")}.items():
        total = model.constrain(constraint, most=20).prob
        probs = [model.constrain(constraint & length(n, n), most=20).prob / total for n in range(4, 21)]
        axes.plot(range(4, 21), probs, "o-", markersize=3, label=name)
    axes.set(xlabel="words", ylabel="probability")
    axes.legend()

# %%
# An HMM can also make *another* model, such as an LSTM or a transformer, satisfy a constraint: see
# :doc:`Generation under constraints </constraints>`.
plt.show()

"""Sentences under constraints, with the model called demo: keywords, a form, a forbidden phrase, an acrostic, guidance.

python examples/constrained.py [MODEL]
"""

import math
import sys

import trellis
from trellis.config import DataConfig
from trellis.constraints import all_of, banned, contains, ends, length, ordered, positions, regex, template
from trellis.corpus.load import corpus_of
from trellis.models.conditioned import Conditioned

model = trellis.load(sys.argv[1] if len(sys.argv) > 1 else "demo")


def show(title: str, found: Conditioned, samples: int = 3) -> None:
    """The probability of a constraint, its most probable sentence, and samples."""
    best = found.best()
    print(f"\n{title}\n  p(constraint) = {found.prob:.3g}, expected length {found.expected_length():.1f} words")
    print(f"  best{'' if best.proved else ' found'}: {best.text}  (log p = {best.log_prob:.1f})")
    for sentence in found.sample(samples):
        print(f"  sample: {sentence}")


# %% Keywords to a sentence: in any order, or in a given order.
known = banned("<unk>") & ends(".")
show("Keywords: file, string", model.constrain(all_of("file", "string") & known, 5, 15))
show("In order: a list, of, strings", model.constrain(ordered("a list", "of", "strings") & known, 5, 15))

# %% Filling a form: gaps of one or several words, and a regular expression over the text.
show("A form", model.constrain(template("return the ___{1,2} of the ___ .") & banned("<unk>"), most=12))
show("A regular expression", model.constrain(regex(r"(return|returns) .*(list|string)\.") & known, most=10))

# %% Forbidding a phrase: how often would the model use it?
phrase = contains("the")
free = model.constrain(length(5, 15), most=15)
with_it = model.constrain(phrase & length(5, 15), most=15)
print(f"\nOf the sentences of 5 to 15 words, {with_it.prob / free.prob:.0%} contain 'the'.")
show("Without 'the'", model.constrain(~phrase & known, 5, 15))

# %% An acrostic: word n begins with letter n.
word = "trellis"
letters = positions([lambda text, letter=letter: text.startswith(letter) for letter in word])
show(f"An acrostic of {word}", model.constrain(letters & banned("<unk>"), most=len(word)))

# %% Guidance: another model (a trigram model of text that the HMM wrote) chooses the words, the HMM looks ahead.
written = [model.vocab.split(sentence) for sentence in model.sample(2000)]
corpus = corpus_of(written, DataConfig(valid_fraction=0.0, test_fraction=0.0), model.vocab)
trigram = trellis.NGram.fit(model.vocab, corpus["train"], order=3)
guide = trellis.guide(model, contains("a list") & known, most=15)
print("\nA trigram model, guided to 'a list'")
for sentence in guide.sample(trigram, 3):
    print(f"  {sentence}")
found = guide.particles(trigram, 50)
print(f"  p(constraint) is about {math.exp(found.log_prob):.2g}; effective sample size {found.effective:.0f} of 50")

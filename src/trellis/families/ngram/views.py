"""The explorer's views of an n-gram model: next words, with the length of the n-gram that predicts them."""

from typing import ClassVar

import torch

from trellis.explore.language import LanguageViews
from trellis.explore.views import Answer
from trellis.families.ngram.model import NGram


class NGramViews(LanguageViews):
    """Views of an n-gram model."""

    views: ClassVar[tuple[str, ...]] = (*LanguageViews.views, "ngrams")
    model: NGram

    def ngrams(self, prompt: str, top: int) -> Answer:
        """The most probable words after a prompt. Each has the length of the longest n-gram of the model that consists
        of the last words of the prompt and this word."""
        answer, model = self.predict(prompt, top), self.model
        state = model.start(1)
        if prompt.strip():
            state = model.score(model.encode_line(prompt), state)[1]
        orders = torch.ones(len(model.vocab), dtype=torch.int64)
        for order, nodes in enumerate(model.trie.walk(state)[: model.order - 1], 2):
            orders[model.trie.children(nodes[:, -1])[1].cpu()] = order
        items = [
            {"word": item["word"], "prob": item["prob"], "order": int(orders[model.vocab.index[item["word"]]])}
            for item in answer["items"]
        ]
        return {"items": items, "order": model.order, "command": answer["command"]}

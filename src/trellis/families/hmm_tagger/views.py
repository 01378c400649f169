"""The explorer's views of an HMM tagger: tags, and all views of an HMM."""

from typing import ClassVar

import torch
from torch import Tensor

from trellis.explore.tagging import TagViews
from trellis.families.hmm.views import HMMViews
from trellis.families.hmm_tagger.model import WORDS, HMMTagger
from trellis.types import Batch


class HMMTaggerViews(HMMViews, TagViews):
    """Views of an HMM tagger."""

    views: ClassVar[tuple[str, ...]] = (*TagViews.views, *HMMViews.views)
    model: HMMTagger

    def marginals(self, words: list[str]) -> tuple[list[str], Tensor]:
        tokens = torch.from_numpy(self.model.lexicon.symbols(words)).unsqueeze(0).to(self.model.device)
        batch = Batch(tokens, torch.tensor([tokens.shape[1]]).to(tokens.device), torch.ones(1, dtype=torch.bool))
        probs = self.model.tag_marginals(batch)[0, :-1, WORDS]
        return self.model.labels, (probs / probs.sum(-1, keepdim=True)).cpu()

"""The explorer's views of a CRF tagger."""

import torch
from torch import Tensor

from trellis.explore.tagging import TagViews
from trellis.families.crf.tagger import CRFTagger


class CRFViews(TagViews):
    """Views of a CRF tagger."""

    model: CRFTagger

    def marginals(self, words: list[str]) -> tuple[list[str], Tensor]:
        model = self.model
        encoded = model.represent([words])
        with torch.no_grad():
            features = model.features(model.attributes([words], None, encoded), [words], encoded).to(model.device)
            return model.labels, model.crf.marginals(features).cpu()

"""LDSVectors."""

from __future__ import annotations

import numpy as np
import pytest

from lds_oracle import markov_text
from trellis.errors import TrellisError
from trellis.estimators import LDSVectors


def test_fit_and_transform() -> None:
    words = np.array(list("abcdefghijkl"))[markov_text(words=12, tokens=2000)]
    sentences = [" ".join(line) for line in words.reshape(-1, 20)]
    estimator = LDSVectors(dim=3, iterations=3)
    with pytest.raises(TrellisError, match="fit first"):
        estimator.transform(["a b"])
    vectors = estimator.fit_transform(sentences)
    assert [array.shape for array in vectors] == [(20, 3)] * 100
    np.testing.assert_allclose(np.linalg.norm(vectors[5], axis=1), 1, rtol=1e-5)
    expected = estimator.model_.embed(sentences[5])
    np.testing.assert_allclose(vectors[5], expected, atol=1e-6)
    unseen = estimator.transform(["a zebra b"])[0]
    assert np.isfinite(unseen).all()

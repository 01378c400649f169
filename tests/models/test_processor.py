"""The logits processor: against the corrections of the guide, and in `generate` of transformers."""

from __future__ import annotations

import re
from itertools import product as all_pairs
from typing import Any

import numpy as np
import pytest
import torch
from test_guide import CONSTRAINT, EXACT, MOST, WORDS, random_hmm
from torch import Tensor

import trellis
from trellis.constraints import Alphabet, Constraint, banned, contains, ends, regex
from trellis.corpus.tokenizer_file import corpus_of_tokenizer
from trellis.errors import TrellisError
from trellis.inference.prefixes import Prefix
from trellis.testing.oracle import SMALLEST_P, chi_square
from trellis.testing.problems import seeded


@pytest.fixture(scope="module")
def hmm() -> trellis.HMM:
    return random_hmm(WORDS)


def test_texts_that_cannot_satisfy_the_constraint_end(hmm: trellis.HMM) -> None:
    """Beam search keeps hypotheses of score -inf if it has no others."""
    processor = trellis.guide(hmm, CONSTRAINT, most=4).processor()
    processor(torch.tensor([[0], [0]]), scores_of(2, 4))
    found = processor(torch.tensor([[0, 2, 2], [0, 0, 1]]), scores_of(2, 4))
    assert found[0].isfinite().tolist() == [False, False, False, True]
    assert found[1].isfinite().all()


def scores_of(rows: int, size: int = 6) -> Tensor:
    return torch.randn(rows, size, generator=seeded(rows), dtype=torch.float64)


def test_the_processor_skips_padding_and_tokens_that_the_hmm_lacks(hmm: trellis.HMM) -> None:
    guide = trellis.guide(hmm, CONSTRAINT, most=4)
    scores = scores_of(2)
    padded = torch.tensor([[5, 5, 0, 1], [5, 2, 0, 0]])
    by_pad = guide.processor(pad=5)(padded, scores)
    by_mask = guide.processor(attention_mask=torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]))(padded, scores)
    assert by_pad.equal(by_mask)
    for row, prompt in enumerate([(0, 1), (2, 0, 0)]):
        expected = scores[row].log_softmax(-1)[:4] + guide.corrections([Prefix((), prompt)])[0]
        assert by_pad[row, :4].allclose(expected, rtol=EXACT)
        assert by_pad[row, 4:].eq(-torch.inf).all()  # tokens that the HMM does not have


def test_the_processor_follows_reordered_rows_and_leaves_ended_ones(hmm: trellis.HMM) -> None:
    guide, scores = trellis.guide(hmm, ends("a"), most=4, cache=3), scores_of(3, 4)
    processor = guide.processor()
    processor(torch.tensor([[1], [2], [2]]), scores)
    found = processor(torch.tensor([[2, 0, 1], [2, 0, 3], [1, 1, 0]]), scores)
    assert found[1].equal(scores[1])
    for row, prefix in ((0, Prefix((0, 1), (2,))), (2, Prefix((1, 0), (1,)))):
        assert found[row].allclose(scores[row].log_softmax(-1) + guide.corrections([prefix])[0], rtol=EXACT)


def test_a_processor_is_for_one_call_of_generate(hmm: trellis.HMM) -> None:
    processor = trellis.guide(hmm, ends("a"), most=4).processor()
    processor(torch.tensor([[1, 0], [2, 0]]), scores_of(2, 4))
    processor(torch.tensor([[2, 0, 1], [2, 0, 2], [1, 0, 0]]), scores_of(3, 4))
    for prompt in ([[0, 1]], [[1]], [[1, 1, 0]]):
        with pytest.raises(TrellisError, match="for one call of generate"):
            processor(torch.tensor(prompt), scores_of(1, 4))


def test_a_processor_that_samples(hmm: trellis.HMM) -> None:
    guide, scores = trellis.guide(hmm, CONSTRAINT, most=4, cache=3), scores_of(1, 5)
    rows = torch.tensor([[1]]).expand(4000, -1)
    found = guide.processor(seed=0)(rows, scores.expand(4000, -1))
    assert (found == 0).sum(-1).eq(1).all()
    assert (found > -torch.inf).sum(-1).eq(1).all()
    expected = guide.processor()(rows[:1], scores).softmax(-1)[0]
    assert chi_square(found.argmax(-1).numpy(), expected.numpy()) > SMALLEST_P


PADDED, MASK = torch.tensor([[0, 0, 1], [2, 1, 1]]), torch.tensor([[0, 0, 1], [1, 1, 1]])


@pytest.mark.parametrize("copies", [1, 3])
@pytest.mark.parametrize("order", [[0, 1], [1, 0], [1], [1, 1, 0]])
def test_masks_follow_reordered_and_dropped_rows(hmm: trellis.HMM, order: list[int], copies: int) -> None:
    """The first prompt is padded with token 0, the second is not."""
    guide = trellis.guide(hmm, contains("a b"), most=MOST)
    rows = torch.tensor([[0, 0, 1, 0], [2, 1, 1, 2]])
    contexts, expected = [(1,), (2, 1, 1)], list[Tensor]()
    for row, context in zip(rows.tolist(), contexts, strict=True):
        expected.append(guide.corrections([Prefix((row[-1],), context)])[0])
    processor = guide.processor(attention_mask=MASK)
    processor(PADDED.repeat_interleave(copies, 0), scores_of(2 * copies, 4))
    scores = scores_of(len(order), 4)
    found = processor(rows[order], scores)
    for number, row in enumerate(order):
        assert found[number].allclose(scores[number].log_softmax(-1) + expected[row], rtol=EXACT)


@pytest.mark.parametrize(
    ("mask", "sentence"),
    [
        (MASK[:, 1:], "mask of shape [2, 2] does not fit the prompts, which have the shape [2, 3]; pass the same mask"),
        (
            torch.cat([MASK, MASK[:, :1]], 1),
            "mask of shape [2, 4] does not fit the prompts, which have the shape [2, 3]; pass the same mask",
        ),
        (MASK[:1], "mask of shape [1, 3] does not fit the prompts, which have the shape [2, 3]"),
        (torch.cat([MASK, MASK[:1]]), "mask of shape [3, 3] does not fit the prompts, which have the shape [2, 3]"),
        (torch.cat([MASK, MASK]), "mask of shape [4, 3] does not fit the prompts, which have the shape [2, 3]"),
        (MASK[0], "mask must be a tensor [prompts, tokens], not one of the shape [3]"),
        (MASK[:0], "mask must be a tensor [prompts, tokens], not one of the shape [0, 3]"),
        (MASK.tolist(), "mask must be a tensor [prompts, tokens], not list"),
    ],
)
def test_masks_of_another_shape_are_refused(hmm: trellis.HMM, mask: Any, sentence: str) -> None:
    with pytest.raises(TrellisError, match=re.escape(sentence)):
        trellis.guide(hmm, CONSTRAINT, most=4).processor(attention_mask=mask)(PADDED, scores_of(2, 4))


def test_prompts_that_only_the_mask_distinguishes_are_refused(hmm: trellis.HMM) -> None:
    """Rows are looked up by their tokens, so the mask of a reordered row would not be known."""
    rows, mask = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[0, 1], [1, 1]])
    guide = trellis.guide(hmm, CONSTRAINT, most=4)
    with pytest.raises(TrellisError, match="same tokens, but different attention masks"):
        guide.processor(attention_mask=mask)(rows, scores_of(2, 4))
    assert guide.processor(attention_mask=mask[:1].expand(2, -1))(rows, scores_of(2, 4)).isfinite().any()


def test_misuse_of_a_processor(hmm: trellis.HMM) -> None:
    guide, rows = trellis.guide(hmm, CONSTRAINT, most=4), torch.tensor([[0]])
    with pytest.raises(TrellisError, match="The guided model has 3 tokens, but the HMM has 4; both need the same"):
        guide.processor()(rows, scores_of(1, 3))
    with pytest.raises(TrellisError, match=r"The seed is 1\.5; pass an integer"):
        guide.processor(seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match="The id of the padding is <pad>; pass an integer"):
        guide.processor(pad="<pad>")  # type: ignore[arg-type]
    with pytest.raises(TrellisError, match="after the prompt in row 0 can satisfy the constraint under both models"):
        trellis.guide(hmm, contains("a", 5), most=4).processor()(rows, scores_of(1, 4))


@pytest.mark.parametrize("seed", [None, 0])
def test_a_prompt_that_the_guided_model_cannot_continue(hmm: trellis.HMM, seed: int | None) -> None:
    scores = scores_of(2, 4)
    scores[1, 0] = -torch.inf  # the only token that is allowed
    processor = trellis.guide(hmm, banned("b") & banned("c"), 2, 4).processor(seed=seed)
    with pytest.raises(TrellisError, match="after the prompt in row 1 can satisfy"):
        processor(torch.tensor([[0], [0]]), scores)


def test_beams_of_score_minus_infinity_may_have_any_tokens(hmm: trellis.HMM) -> None:
    """Also tokens that the HMM does not have, such as 4."""
    processor = trellis.guide(hmm, CONSTRAINT, most=4).processor()
    processor(torch.tensor([[0], [0]]), scores_of(2, 5))
    found = processor(torch.tensor([[0, 4], [0, 0]]), scores_of(2, 5))
    assert found[0].isfinite().tolist() == [False, False, False, True, False]
    assert found[1, :4].isfinite().any()


def test_streams_have_exactly_most_tokens(hmm: trellis.HMM) -> None:
    """Without an end, nothing may follow `most` tokens. Texts that cannot satisfy the constraint go on with tokens of
    the HMM."""
    processor = trellis.guide(hmm, contains("0 1"), most=2, alphabet=Alphabet.of_ids(4)).processor()
    processor(torch.tensor([[2], [2]]), scores_of(2, 5))
    found = processor(torch.tensor([[2, 0], [2, 1]]), scores_of(2, 5))
    assert found.isfinite().tolist() == [[False, True, False, False, False], [True, True, True, True, False]]
    with pytest.raises(TrellisError, match="streams of exactly 2 tokens; pass max_new_tokens=2 to generate"):
        processor(torch.tensor([[2, 0, 1], [2, 1, 1]]), scores_of(2, 5))


@pytest.fixture(scope="module")
def gpt2() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=5, n_layer=1, n_head=2, n_embd=8, n_positions=32, bos_token_id=4, eos_token_id=3, pad_token_id=3
    )  # one token more than the HMM has: 4
    return transformers.GPT2LMHeadModel(config).double().eval()


def generate(gpt2: Any, processor: Any, prompts: Tensor, mask: Tensor | None = None, **options: Any) -> list[list[int]]:
    """The tokens that follow each prompt, up to <eos>."""
    mask = torch.ones_like(prompts) if mask is None else mask
    rows = gpt2.generate(prompts, attention_mask=mask, logits_processor=[processor], max_new_tokens=MOST + 1, **options)
    rows = rows[:, prompts.shape[1] :].tolist()
    assert all(3 in row for row in rows)
    return [row[: row.index(3)] for row in rows]


def test_transformers_sample_what_satisfies_the_constraint(hmm: trellis.HMM, gpt2: Any) -> None:
    guide, automaton = trellis.guide(hmm, CONSTRAINT, most=MOST), CONSTRAINT.compile(hmm.vocab)
    prompts, mask = torch.tensor([[3, 4, 0], [4, 2, 1]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    torch.manual_seed(1)
    for options in (
        {"do_sample": True, "num_return_sequences": 8},
        {"do_sample": True, "num_return_sequences": 8, "num_beams": 1},
        {"num_beams": 4},
        {"num_beams": 3, "do_sample": True},
    ):
        seed = 0 if "num_beams" not in options else None
        found = generate(gpt2, guide.processor(attention_mask=mask, seed=seed), prompts, mask, **options)
        assert len(found) == 2 * options.get("num_return_sequences", 1)
        assert all(automaton.accepts(row) and len(row) <= MOST for row in found)


def test_beams_find_the_best_text_of_the_guided_model(hmm: trellis.HMM, gpt2: Any) -> None:
    """With more beams than texts, and lengths not rewarded, the result is the mode of p(text) 1[constraint]."""
    automaton, prompt, most = CONSTRAINT.compile(hmm.vocab), [4, 0], 3
    rows = [list(row) for n in range(most + 1) for row in all_pairs(range(3), repeat=n) if automaton.accepts(row)]
    with torch.no_grad():
        log_probs = [log_prob(gpt2, prompt, [*row, 3]) for row in rows]
    processor = trellis.guide(hmm, CONSTRAINT, most=most).processor()
    found = generate(gpt2, processor, torch.tensor([prompt]), num_beams=60, length_penalty=0.0)
    assert found == [rows[int(np.argmax(log_probs))]]


def log_prob(gpt2: Any, prompt: list[int], tokens: list[int]) -> float:
    logits = gpt2(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    return float(logits.gather(-1, torch.tensor(tokens).unsqueeze(-1)).sum())


@pytest.mark.parametrize(
    ("options", "seed"),
    [({"num_beams": 60}, None), ({"num_beams": 4}, None), ({"do_sample": True}, None), ({"do_sample": True}, 0)],
)
def test_transformers_generate_streams(hmm: trellis.HMM, gpt2: Any, options: dict[str, Any], seed: int | None) -> None:
    constraint, alphabet = contains("0 1") & banned("2 2"), Alphabet.of_ids(4)
    guide, prompts = trellis.guide(hmm, constraint, most=MOST, alphabet=alphabet), torch.tensor([[4, 0], [2, 1]])
    settings = {"attention_mask": torch.ones_like(prompts), "eos_token_id": None, "num_return_sequences": 4, **options}
    torch.manual_seed(2)
    rows = gpt2.generate(prompts, logits_processor=[guide.processor(seed=seed)], max_new_tokens=MOST, **settings)
    automaton = constraint.compile(alphabet)
    assert rows.shape == (8, 2 + MOST)
    assert all(automaton.accepts(row) for row in rows[:, 2:].tolist())
    with pytest.raises(TrellisError, match=f"pass max_new_tokens={MOST} to generate"):
        gpt2.generate(prompts, logits_processor=[guide.processor(seed=seed)], max_new_tokens=MOST + 2, **settings)


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any, trellis.HMM]:
    """A tokenizer, a random GPT-2 with its tokens, and an HMM trained on ids that this GPT-2 has generated."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    raw, file = tokenizers.Tokenizer(tokenizers.models.BPE()), tmp_path_factory.mktemp("ids") / "tokenizer.json"
    raw.pre_tokenizer, raw.decoder = tokenizers.pre_tokenizers.ByteLevel(False), tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=60, special_tokens=["<|endoftext|>"], show_progress=False)
    raw.train_from_iterator(["return a list of strings", "the list is a file", "a list of the files"] * 20, trainer)
    raw.save(str(file))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>")
    tokenizer.pad_token, tokenizer.padding_side = tokenizer.eos_token, "left"
    torch.manual_seed(0)
    end = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), tokenizer.eos_token_id)
    config = transformers.GPT2Config(vocab_size=len(tokenizer), n_layer=1, n_head=2, n_embd=8, n_positions=32, **end)
    gpt2 = transformers.GPT2LMHeadModel(config).eval()
    start = torch.full((200, 1), tokenizer.eos_token_id)
    rows = gpt2.generate(start, attention_mask=torch.ones_like(start), do_sample=True, max_new_tokens=12)[:, 1:]
    generated = [row[: row.index(tokenizer.eos_token_id)] if tokenizer.eos_token_id in row else row
                 for row in rows.tolist()]  # fmt: skip
    corpus = corpus_of_tokenizer(generated, file)
    return tokenizer, gpt2, trellis.train(corpus, states=4, epochs=2, device="cpu").model


@pytest.mark.parametrize(
    ("constraint", "pattern"),
    [(contains(" list") & banned(" a"), ".* list.*"), (regex("[a-z ]*(is|of) a?"), "[a-z ]*(is|of) a?")],
)
@pytest.mark.parametrize(
    ("options", "seed"), [({"do_sample": True, "num_return_sequences": 4}, None), ({"num_return_sequences": 1}, 0),
                          ({"num_beams": 4}, None)],
)  # fmt: skip
def test_from_generated_ids_to_guided_texts(
    distilled: tuple[Any, Any, trellis.HMM],
    options: dict[str, Any],
    seed: int | None,
    constraint: Constraint,
    pattern: str,
) -> None:
    tokenizer, gpt2, hmm = distilled
    inputs = tokenizer(["return", "return a list of the"], return_tensors="pt", padding=True)
    mask, size = inputs["attention_mask"], inputs["input_ids"].shape[1]
    assert mask[0].sum() < mask[1].sum()
    alphabet, most = Alphabet.of_tokenizer(tokenizer), 8
    processor = trellis.guide(hmm, constraint, 2, most, alphabet=alphabet).processor(attention_mask=mask, seed=seed)
    torch.manual_seed(0)
    settings = {"attention_mask": mask, "logits_processor": [processor], "max_new_tokens": most + 1, **options}
    rows = gpt2.generate(inputs["input_ids"], **settings)[:, size:].tolist()
    automaton = constraint.compile(alphabet)
    assert len(rows) == 2 * options.get("num_return_sequences", 1)
    for row in rows:
        tokens = row[: row.index(tokenizer.eos_token_id)]
        assert automaton.accepts(tokens)
        assert 2 <= len(tokens) <= most
        assert re.fullmatch(pattern, tokenizer.decode(tokens), re.DOTALL)

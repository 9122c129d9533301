"""The evaluation of sentence embeddings on pairs: against scores, or as retrieval of the own second text."""

from __future__ import annotations

import numpy as np

from bertie.report import TextSpan
from bertie.tasks.data.texts import Example
from bertie.tasks.evaluation.findings import Evaluation, Histogram, Scatter, Table
from bertie.tasks.evaluation.passages import Passage, shortened, texts_of
from bertie.tasks.predictions import SimilarityPrediction


def evaluate_scored_pairs(
    scores: list[float], predictions: list[SimilarityPrediction], examples: list[Example]
) -> Evaluation:
    """Return the evaluation of pairs with scores.

    Like Spearman's correlation, the loss compares ranks: the distance between the rank of a pair's similarity and the
    rank of its score, as a share of the number of pairs.
    """
    from scipy.stats import rankdata

    gold, cosines = np.array(scores), np.array([each.similarity for each in predictions])
    by_gold, by_cosine = ((rankdata(values) - 0.5) / len(values) for values in (gold, cosines))
    losses = np.abs(by_cosine - by_gold)

    def passage(i: int) -> Passage:
        facts = {"score": f"{gold[i]:g}, above {100 * by_gold[i]:.0f} % of all pairs"}
        facts["similarity"] = f"{cosines[i]:.3f}, above {100 * by_cosine[i]:.0f} %"
        return Passage(facts, texts_of(examples[i]))

    return Evaluation(
        [{"gold": value, "loss": loss} for value, loss in zip(gold.tolist(), losses.tolist(), strict=True)],
        losses,
        "distance between the rank of the similarity and the rank of the score, as a share of all pairs",
        (Scatter("scatter", "Similarity and score", gold, cosines, "score", "similarity (cosine)", diagonal=False),),
        passage,
    )


def evaluate_retrieval(predictions: list[SimilarityPrediction], examples: list[Example]) -> Evaluation:
    """Return the evaluation of pairs without scores: rank the own second text among all second texts by similarity."""
    ranks, nearest = partner_ranks(*(np.stack([each.vectors[side] for each in predictions]) for side in (0, 1)))

    def passage(i: int) -> Passage:
        own, other = examples[i].text_pair or "", examples[nearest[i]].text_pair or ""
        cosine = float(predictions[i].vectors[0] @ predictions[nearest[i]].vectors[1])
        texts = [
            shortened([TextSpan(examples[i].text)]),
            shortened([TextSpan(own, "gold", f"{predictions[i].similarity:.3f}")]),
            shortened([TextSpan(other, "wrong", f"{cosine:.3f}")]),
        ]
        return Passage({"rank of its own partner": f"{ranks[i]:,} of {len(ranks):,}"}, texts[: 2 + (ranks[i] > 1)])

    shares = {
        **{f"among the nearest {k}": (ranks <= k).mean() for k in (1, 5, 10)},
        "mean of 1 / rank": (1 / ranks).mean(),
        "median of the rank": np.median(ranks),
    }
    powers = np.floor(np.log2(ranks)).astype(np.int64)
    bars = {f"{2**k:,}–{2 ** (k + 1) - 1:,}" if k else "1": int(n) for k, n in enumerate(np.bincount(powers))}
    return Evaluation(
        [{"rank": rank, "loss": rank - 1} for rank in ranks.tolist()],
        ranks - 1.0,
        "number of second texts that are more similar than its own partner",
        (
            Table("partners", "Retrieval of the partner", ("", "value"), [(k, float(v)) for k, v in shares.items()]),
            Histogram(
                "ranks", "Ranks", bars, "rank of the own partner", "number of examples, by the rank of the partner"
            ),
        ),
        passage,
    )


def partner_ranks(first_ND: np.ndarray, second_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rank the rows of `second_ND` by their cosine with each row of `first_ND`; in a tie the first row ranks higher.

    Returns:
        For each row i of `first_ND`, int64 [N] each: the rank of row i of `second_ND`, from 1, and the index of the row
        that ranks first.
    """
    ranks, nearest = [], []
    for start in range(0, len(first_ND), 1024):
        cosines = first_ND[start : start + 1024] @ second_ND.T
        number = np.arange(start, start + len(cosines))
        own = cosines[np.arange(len(cosines)), number][:, None]
        before = (cosines > own) | ((cosines == own) & (np.arange(len(second_ND)) < number[:, None]))
        ranks.append(before.sum(1) + 1)
        nearest.append(cosines.argmax(1))
    return np.concatenate(ranks), np.concatenate(nearest)

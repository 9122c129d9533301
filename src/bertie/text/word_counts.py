"""How often each word occurs: all of a text that vocabulary training reads, and all of it that lies in memory."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from tokenizers import pre_tokenizers

from bertie.text.sentences import cut
from bertie.text.tokenizer import LONGEST_WORD, NormalizerOptions

COUNT_BATCH = 1 << 24  # characters
NORMALIZE_BATCH = 1 << 16  # characters: the library gives some 150 bytes for each
MAX_UNIQUE_WORDS = 2_000_000  # words, some 1.5 GB while a vocabulary is trained on them


@dataclass
class WordCounts:
    """counts: word → how often it occurs, at most `limit` words. Same texts in the same order, same table.

    A table that grows past `limit` forgets its rarest words (of equally rare ones, the last by code points).
    forgotten: how many occurrences of words went that way.
    """

    limit: int = MAX_UNIQUE_WORDS
    counts: Counter[str] = field(default_factory=Counter)
    forgotten: int = 0

    def add(self, found: dict[str, int], forgotten: int = 0) -> None:
        """Take what was counted elsewhere."""
        self.counts.update(found)
        self.forgotten += forgotten
        if len(self.counts) > self.limit:
            counts = np.fromiter(self.counts.values(), np.int64, len(self.counts))
            least = int(np.partition(counts, -self.limit)[-self.limit])
            room = self.limit - int((counts > least).sum())
            kept = set(sorted(word for word, count in self.counts.items() if count == least)[:room])
            self.forgotten += int(counts.sum())
            self.counts = Counter({w: count for w, count in self.counts.items() if count > least or w in kept})
            self.forgotten -= self.counts.total()


def count_words(
    texts: Iterable[str],
    rules: NormalizerOptions = NormalizerOptions(),
    user_tokens: Sequence[str] = (),
    limit: int = MAX_UNIQUE_WORDS,
) -> WordCounts:
    """The words that BERT's rules see between user tokens; those that are [UNK] for their length are left out."""
    table = WordCounts(limit)
    if user_tokens:
        whole = re.compile("|".join(map(re.escape, sorted(user_tokens, key=len, reverse=True))))
        texts = (whole.sub(" ", text) for text in texts)
    for blank_separated in _counted(texts):
        table.add(_seen(blank_separated, rules))
    return table


def _counted(texts: Iterable[str]) -> Iterator[Counter[str]]:
    """What stands between blanks, of some text at a time: far fewer strings than the text has words."""
    found: Counter[str] = Counter()
    size = 0
    for text in texts:
        for part in cut(text, NORMALIZE_BATCH):
            found.update(part.replace("\n", " ").split(" "))
        size += len(text)
        if size >= COUNT_BATCH:
            yield found
            found, size = Counter(), 0
    yield found


def _seen(found: Counter[str], rules: NormalizerOptions) -> Counter[str]:
    """The same after normalization and splitting, which never look beyond a blank: equal counts are done together."""
    normalizer, splitter = rules.normalizer(), pre_tokenizers.BertPreTokenizer()
    equal: dict[int, list[str]] = {}
    for word, times in found.items():
        equal.setdefault(times, []).append(word)
    seen: Counter[str] = Counter()
    for times, words in equal.items():
        for line in cut(" ".join(words), NORMALIZE_BATCH):
            pieces = Counter(piece for piece, _ in splitter.pre_tokenize_str(normalizer.normalize_str(line)))
            for piece, number in pieces.items():
                if len(piece) <= LONGEST_WORD:
                    seen[piece] += number * times
    return seen

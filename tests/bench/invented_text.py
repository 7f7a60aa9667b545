"""A text in an invented language, whose own entropy is known: what no model of it can go below.

Words have a class, a class says which classes may follow and how often, and a word is chosen within its
class by Zipf's law.  No two words are equal and each ends in a space, so that the letters tell the words,
and the entropy of a letter is that of a word over the mean length of a word.
"""

from __future__ import annotations

import numpy as np

LETTERS = "abcdefghijklmnopqrstuvwxyz "
CLASSES, WORDS_OF_CLASS, FOLLOWERS = 12, 20, 3


class Language:
    """Equal for equal seeds, on every machine."""

    def __init__(self, seed: int = 0) -> None:
        random = np.random.default_rng([seed, 1])
        self._words = _words(random, CLASSES * WORDS_OF_CLASS)
        zipf = 1 / np.arange(1, WORDS_OF_CLASS + 1)
        self._in_class = zipf / zipf.sum()
        self._follows = np.zeros((CLASSES, CLASSES))
        for row in self._follows:
            row[random.choice(CLASSES, FOLLOWERS, replace=False)] = random.dirichlet([2] * FOLLOWERS)

    def entropy(self) -> float:
        """Of a letter, in nats."""
        often = np.full(CLASSES, 1 / CLASSES)
        for _ in range(1000):  # To the chain's own frequencies.
            often = 0.5 * often + 0.5 * often @ self._follows
        of_classes = -(often[:, None] * self._follows * np.log(self._follows + 1e-300)).sum()
        of_words = -(self._in_class * np.log(self._in_class)).sum()
        lengths = np.array([len(word) for word in self._words]).reshape(CLASSES, WORDS_OF_CLASS)
        return float((of_classes + of_words) / (often @ lengths @ self._in_class))

    def text(self, letters: int, seed: int) -> np.ndarray:
        """That many letters, as places in LETTERS."""
        random = np.random.default_rng([seed, 2])
        count = letters // 3  # More words than are needed: none is shorter.
        classes, words = random.random(count), random.random(count)
        next_class, in_class = self._follows.cumsum(axis=1), self._in_class.cumsum()
        now, found, length = 0, [], 0
        for at in range(count):
            now = min(int(np.searchsorted(next_class[now], classes[at])), CLASSES - 1)
            word = min(int(np.searchsorted(in_class, words[at])), WORDS_OF_CLASS - 1)
            found.append(self._words[now * WORDS_OF_CLASS + word])
            length += len(found[-1])
            if length >= letters:
                break
        code = {letter: place for place, letter in enumerate(LETTERS)}
        return np.array([code[each] for each in "".join(found)[:letters]], np.int64)


def _words(random: np.random.Generator, count: int) -> list[str]:
    """Syllables of a consonant and a vowel, one to three of them, and a space."""
    found: dict[str, None] = {}
    while len(found) < count:
        syllables = 1 + int(random.integers(3))
        word = "".join(
            "bcdfghjklmnpqrstvwxz"[random.integers(20)] + "aeiouy"[random.integers(6)] for _ in range(syllables)
        )
        found[word + " "] = None
    return list(found)

"""Finds the log-probabilities that llama.cpp leaves out.

Its server gives none for a token whose bytes end inside a character (an emoji of four bytes is often three
tokens), though it sampled it. Which tokens those are is not said: the entries that are given are matched to
the tokens from both ends, and what both matchings agree on is certain. The rest is read from the distribution
at that place, asked for again with the very ids before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from workers.policy.protocol import Sampling


def certain_matches(ids: Sequence[int], entry_ids: Sequence[int]) -> list[int | None] | None:
    """For each token the index of its entry, None where it has none for sure; None where they don't match."""
    first = _earliest(ids, entry_ids)
    backwards = _earliest(ids[::-1], entry_ids[::-1])
    if first is None or backwards is None:
        return None
    last = [len(ids) - 1 - at for at in reversed(backwards)]
    matches: list[int | None] = [None] * len(ids)
    for entry, (early, late) in enumerate(zip(first, last, strict=True)):
        if early == late:
            matches[early] = entry
    return matches


def logprob_of(token: int, ids: NDArray[np.int64], raw: NDArray[np.float64], sampling: Sampling) -> float:
    """The token's log-probability under `sampling`, from the whole raw distribution over `ids`.

    In the order in which the server was told to cut: top_k, top_p, min_p, then the temperature.
    """
    order = np.argsort(-raw, kind="stable")
    ids, logprobs = ids[order], raw[order]
    if sampling.top_k > 0:
        ids, logprobs = ids[: sampling.top_k], logprobs[: sampling.top_k]
    if sampling.top_p < 1.0:
        mass = np.cumsum(np.exp(_normalised(logprobs)))
        kept = int(np.searchsorted(mass, sampling.top_p)) + 1
        ids, logprobs = ids[:kept], logprobs[:kept]
    if sampling.min_p > 0.0:
        keeps = logprobs >= logprobs[0] + np.log(sampling.min_p)
        ids, logprobs = ids[keeps], logprobs[keeps]
    if sampling.temperature <= 0.0:
        return 0.0 if ids[0] == token else -np.inf
    scaled = _normalised(logprobs / sampling.temperature)
    found = np.flatnonzero(ids == token)
    return float(scaled[found[0]]) if len(found) else -np.inf


def _earliest(ids: Sequence[int], entry_ids: Sequence[int]) -> list[int] | None:
    """Match each entry to the earliest token that is left."""
    places, at = [], 0
    for entry in entry_ids:
        while at < len(ids) and ids[at] != entry:
            at += 1
        if at == len(ids):
            return None
        places.append(at)
        at += 1
    return places


def _normalised(logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    top = logprobs.max()
    shifted: NDArray[np.float64] = logprobs - (top + np.log(np.exp(logprobs - top).sum()))
    return shifted

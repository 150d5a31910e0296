"""Random orders that stay the same with every version of numpy."""

from __future__ import annotations

import numpy as np


def permutation(count: int, *key: int) -> np.ndarray:
    """A random order of 0 to `count` - 1 (int64) that depends on the key alone.

    Sorted raw bits, because numpy promises those for good; what its `permutation` returns may change with a version,
    and a run that resumes after an upgrade would repeat documents.
    """
    # The length comes first: to SeedSequence, keys that differ only in zeros at the end are the same.
    bits = np.random.PCG64(np.random.SeedSequence((len(key), *key))).random_raw(count)
    return np.argsort(bits, kind="stable")

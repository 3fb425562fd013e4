"""The logistic function and its inverse, of NumPy alone: SciPy is not in the base."""

from __future__ import annotations

from typing import Any

import numpy as np


def expit(x: Any) -> Any:
    return 1 / (1 + np.exp(-np.asarray(x, np.float64)))


def logit(p: Any) -> Any:
    p = np.asarray(p, np.float64)
    return np.log(p) - np.log1p(-p)

"""Engines that keep quiet while they are imported or used."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quietly(log: str) -> Iterator[None]:
    """Without warnings, which a strict test run makes errors.

    The engine's log keeps to errors (no remarks on Triton, resets) unless somebody set a level.
    """
    logger = logging.getLogger(log)
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield

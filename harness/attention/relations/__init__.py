"""Metamorphic relations: what two versions of a problem must have in common, as checks."""

from kvassay.harness.attention.relations import (
    addressing,
    batches,
    heads,
    keys,
    masking,
    modifiers,
    partition,
    unread,
    values,
)

__all__ = [
    "addressing",
    "batches",
    "heads",
    "keys",
    "masking",
    "modifiers",
    "partition",
    "unread",
    "values",
]

"""Where a kernel of a rounding class rounds, and to what.

| class | what it rounds, beside float32 arithmetic and storing the output |
|---|---|
| P | the probabilities, as operand of the product with V: relative to a maximum, or normalised |
| P+part | also the partial outputs of a split |
| S | also the scores, once |
| eager | also the scores after every operation on them |
| Qpre | also the query, multiplied by the scale beforehand |
| tf32 | float32 query, keys, values and probabilities to TF32, to nearest or cut off |
| ieee | nothing: every operation is in float32, and only the output is rounded |

tf32 means P where the query is of 16 bits; where the query is float32 all others mean ieee. In
every class the keys and values times their scales may be rounded to the query's type before they
are multiplied.

fp8, query and probabilities rounded to e4m3, is refused: nobody may be judged by a model that is
not there. One rounding of a query element moves all logits of a row by up to a sixteenth of their
size, in the same direction; weights are rounded alike in all rows, and small ones are subnormal;
and by what the query is scaled beforehand, so that it neither saturates nor vanishes, the contract
does not say. A random model of all that convicts correct kernels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from kvassay.harness.contract import ContractError, Rounding

MODELLED = tuple(rounding for rounding in Rounding if rounding is not Rounding.FP8)
NEAREST = 1 / math.sqrt(6)
"""Standard deviation of rounding to nearest, in u, over log-uniform mantissas."""
SINGLE = 2.0**-24
"""u of float32."""
HALF_SPACING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: SINGLE}
"""u of each type that a query may have."""
SMALLEST = {torch.bfloat16: 2.0**-126, torch.float16: 2.0**-24, torch.float32: 2.0**-126}
"""What may be lost whole: the spacing of float16's subnormals, which tensor cores keep, and the
smallest normal of the others, whose subnormals are flushed."""
TF32 = 2.0**-11


@dataclass(frozen=True)
class Precision:
    """u of every place where a class rounds; 0 where it does not."""

    storage: float
    """Of the query's and the output's type."""
    query: float = 0.0
    key: float = 0.0
    value: float = 0.0
    probability: float = 0.0
    scores: int = 0
    """Roundings of the scores to the storage type: 0, 1, or 2 for after every operation."""
    partials: bool = False
    """Whether the parts of a split are stored in the output's type."""
    truncation: float = 0.0
    """u of operands that may be cut off: their errors have one sign."""


def require_model(rounding: Rounding) -> None:
    """Raise `ContractError` for a class by which nobody can be judged yet."""
    if rounding not in MODELLED:
        raise ContractError(
            f"rounding={rounding}: the error of products in FP8 is not modelled yet, so that no "
            "verdict would be fair; a kernel that has other products too may refuse float8 caches "
            "and declare the class of those"
        )


def in_effect(rounding: Rounding, dtype: torch.dtype) -> Rounding:
    """The class that a declared one comes to for the type of a query.

    Raises `ContractError` for one that is not modelled.
    """
    require_model(rounding)
    if dtype == torch.float32:
        return rounding if rounding is Rounding.TF32 else Rounding.IEEE
    return Rounding.P if rounding is Rounding.TF32 else rounding


def precision(rounding: Rounding, dtype: torch.dtype) -> Precision:
    """What a class that is in effect rounds, for a query's type."""
    u = HALF_SPACING[dtype]
    plain = Precision(u, probability=u)
    match rounding:
        case Rounding.IEEE:
            return Precision(u)
        case Rounding.P_PART:
            return replace(plain, partials=True)
        case Rounding.S:
            return replace(plain, scores=1)
        case Rounding.EAGER:
            return replace(plain, scores=2)
        case Rounding.Q_PRE:
            return replace(plain, query=u)
        case Rounding.TF32:
            return Precision(u, TF32, TF32, TF32, TF32, truncation=TF32)
    return plain

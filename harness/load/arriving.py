"""Whether arrivals are those of the declared process.

For gamma gaps (Poisson is one of them) three things are known exactly: how a gap is distributed,
how the sum of n gaps is, and how unlikely it is that this sum is as close to its mean as it is.
The last convicts gaps that were rescaled to fit a duration, which makes every seed alike and hides
that load fluctuates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise

from kvassay.harness.workloads.arrivals import gamma

FALSE_ALARM = 1e-6
"""How likely each question may convict what was drawn from the process."""


def drawn(rate: float, cv: float, count: int, seed: int) -> list[float]:
    """Times of `count` arrivals of a gamma process, in seconds from its beginning."""
    return list(islice(gamma(rate, cv, seed), count))


def strangeness(times: Sequence[float], rate: float, cv: float) -> Iterator[str]:
    """In which ways these are no arrivals of that process, from time 0 on."""
    from scipy import stats  # type: ignore[import-untyped]

    if not times:
        return
    gaps = [after - before for before, after in pairwise([0.0, *times])]
    if min(gaps) < 0:
        yield "arrivals go back in time"
        return
    shape, scale, count = 1 / cv**2, cv**2 / rate, len(gaps)
    total, mean = times[-1], count / rate
    whole = stats.gamma(count * shape, scale=scale)
    if stats.kstest(gaps, stats.gamma(shape, scale=scale).cdf).pvalue < FALSE_ALARM:
        yield f"gaps are not distributed as with rate {rate:g} and cv {cv:g}"
    if 2 * min(whole.cdf(total), whole.sf(total)) < FALSE_ALARM:
        yield f"{count} arrivals took {total:g} s, not about {mean:g} s"
    off = abs(total - mean)
    if whole.cdf(mean + off) - whole.cdf(mean - off) < FALSE_ALARM:
        yield f"{count} arrivals took {total:g} s, which is {mean:g} s too exactly: rescaled"

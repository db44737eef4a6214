"""The pinned cases of the corpus, as far as a kernel claims what they ask for.

What is not claimed is never asked: a kernel may well ignore what it does not know.
"""

from __future__ import annotations

from kvassay.harness.assay import corpus_folder
from kvassay.harness.attention.case import Case, Garbage, Trial, load
from kvassay.harness.attention.reach import claimed, reached
from kvassay.harness.contract import Capability, Declaration, Tail

CORPUS = "kvassay.suites.corpus.attention"


def pinned(declaration: Declaration) -> list[Trial]:
    """The cases in the order of their names."""
    trials = [load(path) for path in sorted(corpus_folder(CORPUS).glob("*.json"))]
    return [trial for trial in trials if asks_what_is_claimed(trial.case, declaration)]


def asks_what_is_claimed(case: Case, declaration: Declaration) -> bool:
    """Whether a kernel that declares this could be held to its result."""
    if case.causal and not declaration.has(Capability.CAUSAL):
        return False
    if case.garbage in (Garbage.NAN, Garbage.INF) and declaration.tail is not Tail.ANY:
        return False
    return all(claimed(each, declaration) for each in reached(case))

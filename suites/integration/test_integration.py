"""Every live request is attended to after every operation, and comes to what its history says.

Each manager is paired with each kernel. A pair's campaign runs once; every test reads one verdict
off it. What is wrong is the manager's where the pool does not hold the KV of the history, else the
kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvassay.harness.pairs.assay import PairAssay


def test_a2_fresh_hand_out(pair_assay: PairAssay) -> None:
    pair_assay.require("A2")


def test_a7_table_coherence(pair_assay: PairAssay) -> None:
    pair_assay.require("A7")


def test_c1_sharers_are_isolated(pair_assay: PairAssay) -> None:
    pair_assay.require("C1")


def test_c2_copies_are_complete(pair_assay: PairAssay) -> None:
    pair_assay.require("C2")


def test_p1_a_hit_is_resident(pair_assay: PairAssay) -> None:
    pair_assay.require("P1")


def test_p2_key_identity(pair_assay: PairAssay) -> None:
    pair_assay.require("P2")


def test_p4_written_before_read(pair_assay: PairAssay) -> None:
    pair_assay.require("P4")


def test_p5_look_ups_tell_the_truth(pair_assay: PairAssay) -> None:
    pair_assay.require("P5")


def test_k1_oracle(pair_assay: PairAssay) -> None:
    pair_assay.require("K1")


def test_k2_tail_independence(pair_assay: PairAssay) -> None:
    pair_assay.require("K2")


def test_nothing_else_is_broken(pair_assay: PairAssay) -> None:
    pair_assay.require_nothing_else()


def test_the_controls_were_convicted(pair_assay: PairAssay) -> None:
    pair_assay.require_control()


def test_no_deviation_is_stale(pair_assay: PairAssay) -> None:
    pair_assay.require_no_stale_deviation()

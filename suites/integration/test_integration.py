"""Every live request is attended to after every operation, and comes to what its history says.

Each manager is paired with each kernel. A pair's campaign runs once; every test reads one verdict
off it. What is wrong is the manager's where the pool does not hold the KV of the history, else the
kernel's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kvassay.harness.pairs.assay import PairAssay


def test_a2_fresh_hand_out(pair: PairAssay) -> None:
    pair.require("A2")


def test_a7_table_coherence(pair: PairAssay) -> None:
    pair.require("A7")


def test_c1_sharers_are_isolated(pair: PairAssay) -> None:
    pair.require("C1")


def test_c2_copies_are_complete(pair: PairAssay) -> None:
    pair.require("C2")


def test_p1_a_hit_is_resident(pair: PairAssay) -> None:
    pair.require("P1")


def test_p2_key_identity(pair: PairAssay) -> None:
    pair.require("P2")


def test_p4_written_before_read(pair: PairAssay) -> None:
    pair.require("P4")


def test_p5_look_ups_tell_the_truth(pair: PairAssay) -> None:
    pair.require("P5")


def test_k1_oracle(pair: PairAssay) -> None:
    pair.require("K1")


def test_k2_tail_independence(pair: PairAssay) -> None:
    pair.require("K2")


def test_nothing_else_is_broken(pair: PairAssay) -> None:
    pair.require_nothing_else()


def test_the_controls_were_convicted(pair: PairAssay) -> None:
    pair.require_control()

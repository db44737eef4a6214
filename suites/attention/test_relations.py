"""Relations between the results of one kernel on problems that belong together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvassay.harness.contract import PagedAttention

if TYPE_CHECKING:
    from kvassay.harness.attention.assay import KernelAssay

pytestmark = pytest.mark.suite("attention", kind=PagedAttention)


def test_k1_permuted_keys(assay: KernelAssay) -> None:
    assay.require("permuted-keys")


def test_k1_repeated_keys(assay: KernelAssay) -> None:
    assay.require("repeated-keys")


def test_k1_one_key_more(assay: KernelAssay) -> None:
    assay.require("one-key-more")


def test_k2_other_garbage(assay: KernelAssay) -> None:
    assay.require("other-garbage")


def test_k2_evicted_blocks(assay: KernelAssay) -> None:
    assay.require("evicted-blocks")


def test_k4_shared_blocks(assay: KernelAssay) -> None:
    assay.require("shared-blocks")


def test_k4_run_twice(assay: KernelAssay) -> None:
    assay.require("run-twice")


def test_k4_longer_neighbour(assay: KernelAssay) -> None:
    assay.require("longer-neighbour")


def test_k4_last_rows(assay: KernelAssay) -> None:
    assay.require("last-rows")


def test_k4_chunked_prefill(assay: KernelAssay) -> None:
    assay.require("chunked-prefill")


def test_k4_merged_parts(assay: KernelAssay) -> None:
    assay.require("merged-parts")


def test_k5_later_tokens(assay: KernelAssay) -> None:
    assay.require("later-tokens")


def test_k6_tokens_left_of_window(assay: KernelAssay) -> None:
    assay.require("tokens-left-of-window")


def test_k7_permuted_heads(assay: KernelAssay) -> None:
    assay.require("permuted-heads")


def test_k7_copied_kv_heads(assay: KernelAssay) -> None:
    assay.require("copied-kv-heads")


def test_k8_other_block_ids(assay: KernelAssay) -> None:
    assay.require("other-block-ids")


def test_k8_other_layout(assay: KernelAssay) -> None:
    assay.require("other-layout")


def test_k8_other_block_size(assay: KernelAssay) -> None:
    assay.require("other-block-size")


def test_k8_other_blocks(assay: KernelAssay) -> None:
    assay.require("other-blocks")


def test_k12_shifted_keys(assay: KernelAssay) -> None:
    assay.require("shifted-keys")


def test_k9_sink_as_key(assay: KernelAssay) -> None:
    assay.require("sink-as-key")


def test_k9_neutral_modifiers(assay: KernelAssay) -> None:
    assay.require("neutral-modifiers")


def test_k9_powers_of_two(assay: KernelAssay) -> None:
    assay.require("powers-of-two")


def test_k9_linear_in_values(assay: KernelAssay) -> None:
    assay.require("linear-in-values")


def test_k10_powers_of_two_in_scales(assay: KernelAssay) -> None:
    assay.require("powers-of-two-in-scales")


def test_k10_scale_of_every_token(assay: KernelAssay) -> None:
    assay.require("scale-of-every-token")


def test_k13_given_buffers(assay: KernelAssay) -> None:
    assay.require("given-buffers")


def test_k14_batch_composition(assay: KernelAssay) -> None:
    assay.require("batch-composition")


def test_k14_other_contents(assay: KernelAssay) -> None:
    assay.require("other-contents")


def test_k14_empty_sequences(assay: KernelAssay) -> None:
    assay.require("empty-sequences")

"""What SGLang's scheduler calls for one request, since 0.5.22 and before.

Since 0.5.22 functions of ``mem_cache.common`` match, checkpoint and release a request, and a tree
gives a receipt for a lock. Before, the request looked itself up, a tree cached it unfinished or
finished, and a lock was a count of references on the node that the request had reached. What a
request goes through is the same, so both are told in the same five words here.
"""

from __future__ import annotations

from typing import Any, Protocol


class Requests(Protocol):
    """The calls of one kind of release, on a tree and a request of its own."""

    def match(self, tree: Any, req: Any, most: int) -> int:
        """Look a request up; the tokens that are resident, at most `most`."""
        ...

    def found(self, tree: Any, req: Any) -> Any:
        """The slots of those tokens, as a tensor."""
        ...

    def lock(self, tree: Any, req: Any) -> None:
        """Protect what was found."""
        ...

    def unlock(self, tree: Any, req: Any) -> None:
        """Give that up."""
        ...

    def committed(self, req: Any) -> int:
        """Tokens whose KV the tree knows to be written, those found included."""
        ...

    def checkpoint(self, tree: Any, req: Any, up_to: int) -> None:
        """Publish the first `up_to` tokens of a running request."""
        ...

    def release(self, tree: Any, req: Any, publishes: bool) -> None:
        """The request leaves, and what it computed goes into the tree or is freed."""
        ...


class Current:
    """Since 0.5.22."""

    def __init__(self, common: Any) -> None:
        self._common = common

    def match(self, tree: Any, req: Any, most: int) -> int:
        self._common.match_kv_cache(req, tree, max_prefix_len=most)
        return int(req.prefix_len)

    def found(self, tree: Any, req: Any) -> Any:
        return tree.prefix_device_indices(req)

    def lock(self, tree: Any, req: Any) -> None:
        req.lock = tree.lock(req.last_node)
        req.kv.cache_protected_len = req.prefix_len

    def unlock(self, tree: Any, req: Any) -> None:
        tree.unlock(req.lock)

    def committed(self, req: Any) -> int:
        # A checkpoint leaves here where the next extend begins; before the first, the hit.
        return int(req.prefix_len)

    def checkpoint(self, tree: Any, req: Any, up_to: int) -> None:
        req.refresh_fill_ids()
        req.extend_end = up_to
        self._common.checkpoint_kv_cache(req, tree)

    def release(self, tree: Any, req: Any, publishes: bool) -> None:
        self._common.release_kv_cache(req, tree, checkpoint=publishes)


class Earlier:
    """0.5.19 to 0.5.21."""

    def __init__(self, common: Any) -> None:
        self._common = common

    def match(self, tree: Any, req: Any, most: int) -> int:
        # The request leaves out its last token by itself.
        req.init_next_round_input(tree)
        hit = len(req.prefix_indices)
        if hit > most:
            raise RuntimeError(f"expected at most {most} tokens found, got {hit}")
        return hit

    def found(self, tree: Any, req: Any) -> Any:
        return req.prefix_indices

    def lock(self, tree: Any, req: Any) -> None:
        req.lock_receipt = tree.inc_lock_ref(req.last_node).to_dec_params()

    def unlock(self, tree: Any, req: Any) -> None:
        tree.dec_lock_ref(req.last_node, req.lock_receipt)

    def committed(self, req: Any) -> int:
        return len(req.prefix_indices)

    def checkpoint(self, tree: Any, req: Any, up_to: int) -> None:
        req._refresh_fill_ids()
        req.set_extend_range(len(req.prefix_indices), up_to)
        tree.cache_unfinished_req(req)

    def release(self, tree: Any, req: Any, publishes: bool) -> None:
        self._common.release_kv_cache(req, tree, is_insert=publishes)

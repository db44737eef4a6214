"""What each invariant of the law means, in a few sentences: for whoever was convicted by it."""

from __future__ import annotations

from collections.abc import Mapping

MEANING: Mapping[str, str] = {
    "A1": "Every block is free, held by a live request, or cached and idle, and never two of "
    "these at once. Where the manager counts its blocks, each count is the size of the set "
    "that it names, and together they are the pool.",
    "A2": "A block that is handed out as new belongs to nobody: no other table shows it, nothing "
    "pins it, no copy is under way in it. Between two hand-outs of a block lies its "
    "release.",
    "A3": "A block goes back when the last of those that hold it has left, once, and not before: "
    "a request that shares it keeps it. Where `reclaim` is declared as reset, it may take "
    "until then.",
    "A4": "A refusal is an answer, not an accident: whatever live requests can read stays "
    "readable. A yes of a capacity query binds the next operation on that key. And what "
    "fits, beside live tables and declared limits, is not refused.",
    "A5": "When everybody has left, whichever way (finished, aborted between any two steps, "
    "preempted), the whole pool can be handed out again. What is missing then has leaked.",
    "A6": "Requests count tokens, storage counts blocks: a partly filled block is given back "
    "once, and only when none of its tokens is needed any more.",
    "A7": "A request of n tokens has a table of as many blocks as n tokens fill, and at most its "
    "declared look-ahead more; no two of its positions share a slot. Behind a window entries may "
    "be null, and nowhere else: not where the next query sees, in any layer group.",
    "C1": "Sharing is invisible: no request ever reads what another wrote into a block that both "
    "hold. Who writes into a shared block writes into a copy.",
    "C2": "A copy is the whole block, and copies of one batch behave as if all sources were read "
    "before anything was written. Afterwards the two blocks have nothing to do with each "
    "other.",
    "P1": "What is counted as a hit is there: in the slots of the table, with the KV that "
    "computing it would have left; in every layer group, as far as its window lets the next query "
    "see.",
    "P2": "KV is shared between equal keys and no others. Keys are equal in every token from the "
    "start on, and in salt, adapter and content spans, none of which can be taken for "
    "another or for tokens.",
    "P3": "With nothing evicted, a look-up hits exactly what the declared law says (`unit`, "
    "`reserve`, `drop`): not a token more, and nothing behind the first miss. Layer groups agree "
    "on one number, the least of theirs.",
    "P4": "Nobody is served KV before it is written, as declared by `publish`. What was "
    "cancelled, truncated away, or drafted and rejected is never served.",
    "P5": "A look-up returns blocks that hold that key's KV now. A block that was evicted, "
    "recycled or forgotten in a reset is found under no key of its past.",
    "P6": "A tree that splits an edge inside a prefix answers, locks and ages as it did before: "
    "the cut cannot be seen from outside.",
    "P7": "What a request has pinned (by its look-up, or by a lock on a handle) survives any "
    "eviction, with the whole path to it, until it is let go; letting go undoes exactly "
    "that.",
    "P8": "What the cache says that it holds, protects and could evict is what it does hold, "
    "protect and can evict.",
    "P9": "`evict(n)` frees n if so much is evictable, else all of it; at most that rounded up to "
    "the declared granularity; it says truly how much, touches nothing that is pinned, and "
    "leaves nothing behind that takes memory and cannot be reached.",
    "P10": "Whoever declares an order of eviction (`order`, `stamps`, `tie`) evicts in that order, "
    "reckoned over the accesses that were seen. Who declares none is not judged.",
    "P11": "Two requests that compute the same prefix neither corrupt nor leak anything: both "
    "copies are kept, or one is and the other request goes on with it, as declared by "
    "`dedup`.",
    "P12": "A cache that is not under pressure works: the same request again hits what the law "
    "says, and what goes on behind it is found, too.",
    "E1": "Whoever keeps a copy of the cache from its events, and nothing else, finds what the "
    "cache finds.",
    "E2": "Events are complete and in order: nothing appears or disappears without one, and a "
    "reset is told.",
    "K1": "The output, and its log-sum-exp, differ from attention in double precision by no more "
    "than the roundings that the kernel must make.",
    "K2": "Slots behind the end of a sequence, blocks outside its table and unused columns of the "
    "table have no influence, to the bit; for NaN and wild ids where the kernel claims so.",
    "K3": "A row that sees no key gives what is declared (`empty_row`), and merging it changes "
    "nothing.",
    "K4": "Splitting the keys, cutting the queries into chunks and taking another variant change "
    "nothing but roundings; where determinism is claimed, nothing.",
    "K5": "Query i of a chunk sees the positions up to its own, however the prompt was cut.",
    "K6": "With a window, a row sees exactly as many keys as declared, in prefill as in decode; "
    "one that is longer than the sequence changes nothing.",
    "K7": "With grouped queries, query head h reads KV head h // group; head counts that do not "
    "divide are refused.",
    "K8": "Which blocks a sequence lies in, and how the cache is laid out in memory, do not "
    "matter: also where a block's offset needs more than 31 bits.",
    "K9": "Scale, soft cap, bias, mask, softmax and sink are applied once each, in the declared "
    "order; what is switched on changes the result as it should.",
    "K10": "Scales of quantised keys and values are applied once, on every path.",
    "K11": "Every head size, block size, head count and length is computed correctly or refused "
    "with an error: never computed wrongly.",
    "K12": "Finite inputs give finite outputs, however large the scores.",
    "K13": "A kernel writes its own output and nothing else, and reads only what it was given.",
    "K14": "At equal shapes, the bits of a row do not depend on what other rows contain.",
    "S1": "A request gets the same answer cold or warm, alone or in a batch, in one chunk or "
    "several, preempted or not: that of the model alone, within its roundings.",
    "S2": "As long as some request would fit an empty pool, one of them advances.",
    "S3": "What cannot be served is refused, preempted or ended with a reason, and the others go "
    "on.",
    "M1": "The time to the first token counts from the intended start to the first chunk that "
    "carries one; where none came, it is absent and not zero.",
    "M2": "All stamps are of one clock that never goes back.",
    "M3": "The times of a request add up: to the first token, and from token to token, is the "
    "whole; what is per chunk says so.",
    "M4": "Latency counts from when the load meant a request to start, and arrivals are those "
    "that were declared: a slow server does not slow the load.",
    "M5": "The cached tokens that are told are those that the workload makes.",
    "M6": "A request that failed, broke off or was given up is no success, and none disappears.",
    "M7": "Every counter counts what its published definition says.",
}
"""By id."""

"""The two records that the radix manager is made of: a node of its tree, and a live request.

They know each other. A request *pins* the node up to whose end the tree's blocks stand in its
table. A node that is a leaf, and pinned by one request alone, may have that request as its
*writer*: what the writer commits behind the end of the node belongs to the node as well, and is
taken over when somebody looks (`RadixTree.settle`). So a decode step changes two numbers of the
request, and nothing in the tree.
"""

from __future__ import annotations

from array import array

from kvassay.impls.radix_key import Elements, Space


class TreeNode:
    """Tokens [start, end) of a prefix and the blocks that hold them."""

    __slots__ = (
        "blocks",
        "children",
        "elements",
        "end",
        "entries",
        "locks",
        "newer",
        "older",
        "parent",
        "pins",
        "space",
        "start",
        "writer",
    )

    def __init__(
        self,
        parent: TreeNode | None,
        space: Space,
        start: int,
        elements: Elements,
        blocks: list[int],
    ) -> None:
        self.parent = parent
        self.space = space
        self.start = start
        self.end = start + len(elements)
        self.elements = elements
        self.blocks = blocks
        self.entries: list[int] = []  # ids in the event log, one per element once it records
        self.children: dict[int, TreeNode] = {}  # by their first element
        self.pins = 0  # requests that pin this very node
        self.locks = 0  # pins here and below
        self.older: TreeNode | None = None  # neighbours in the list of unlocked nodes
        self.newer: TreeNode | None = None
        self.writer: RadixRequest | None = None

    @classmethod
    def root(cls, space: Space) -> TreeNode:
        """A node without tokens, above all others of its space."""
        return cls(None, space, 0, array("Q"), [])


class RadixRequest:
    """One live request."""

    __slots__ = ("committed", "drafts", "elements", "node", "room", "slots", "table")

    def __init__(self, elements: Elements, node: TreeNode, table: list[int]) -> None:
        self.elements = elements  # the whole prompt, and what was appended
        self.node = node  # pinned
        self.table = table
        self.slots = 0  # leading tokens that have slots
        self.committed = 0  # leading tokens whose KV is written
        self.drafts = 0  # trailing tokens that are not yet accepted
        self.room = 0  # tokens there may be before anybody else must be asked; 0 if not known

    @property
    def publishable(self) -> int:
        """Leading tokens that look-ups may find: written, and no drafts."""
        return min(self.committed, self.slots - self.drafts)

"""Which worker has which prompts in its cache, approximately: one radix tree of token bytes, pure.

Edges are whole blocks of tokens, so a prompt of any length takes a few slices and comparisons of bytes (done in C)
per branching, not one step per block. A node knows its owners (workers) as bits of an integer; the owner of a node
owns its parents. Nodes are kept in order of use with parents after their children, so the oldest node is always a
leaf and eviction is one step at a time: the tree never exceeds its size, and no request waits for a round of eviction.
"""

from __future__ import annotations

from collections import OrderedDict

from smg_trio.routing.policies.token_bytes import TOKEN_BYTES

NODE_TOKENS = 128
"""What a node costs besides its edge, in tokens of four bytes, so that the size bounds memory too."""


class Node:
    """A run of blocks below `parent`, and who has it."""

    __slots__ = ("children", "edge", "owners", "parent")

    def __init__(self, edge: bytes, owners: int, parent: Node | None) -> None:
        self.edge = edge
        self.owners = owners
        self.parent = parent
        self.children: dict[bytes, Node] = {}


Path = list[tuple[Node, int]]
"""The nodes a prompt runs through from the top, each with the byte of the prompt where it leaves it."""


class PrefixTree:
    """Prompts are bytes (see `token_bytes`).

    Args:
        max_tokens: bound of the tree: tokens of all edges plus `NODE_TOKENS` per node.
        block_tokens: prompts are told apart at multiples of this; a shorter rest is not kept.
    """

    def __init__(self, max_tokens: int, block_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._block = block_tokens * TOKEN_BYTES
        self._root = Node(b"", 0, None)
        self._by_use: OrderedDict[Node, None] = OrderedDict()
        self.tokens = 0

    def __len__(self) -> int:
        return len(self._by_use)

    def owners(self) -> int:
        """The bits of all owners."""
        owners = 0
        for node in self._root.children.values():
            owners |= node.owners  # the owner of a node owns its parents
        return owners

    def find(self, prompt: bytes) -> Path:
        """How far the tree knows the prompt. The last node may be left inside its edge, at a block's end."""
        path: Path = []
        node, position, block = self._root, 0, self._block
        while (child := node.children.get(prompt[position : position + block])) is not None:
            edge = child.edge
            if prompt.startswith(edge, position):
                position += len(edge)
                path.append((child, position))
                node = child
                continue
            path.append((child, position + self._common(prompt, position, edge)))
            break
        return path

    def _common(self, prompt: bytes, position: int, edge: bytes) -> int:
        # The first block is known to agree and the whole edge not to: halve what lies between, in blocks.
        block = self._block
        agree, differ = 1, min(len(edge), len(prompt) - position) // block + 1
        while differ - agree > 1:
            middle = (agree + differ) // 2
            if prompt.startswith(edge[: middle * block], position):
                agree = middle
            else:
                differ = middle
        return agree * block

    def claim(self, prompt: bytes, path: Path, owner: int) -> None:
        """Note that `owner` (one bit) has the prompt now; `path` is what `find` has just returned for it."""
        nodes = [node for node, _ in path]
        position = path[-1][1] if path else 0
        if nodes:
            start = path[-2][1] if len(path) > 1 else 0
            nodes[-1] = self._split(nodes[-1], position - start)
        end = len(prompt) - len(prompt) % self._block
        if position < end:
            nodes.append(self._add(prompt[position:end], nodes[-1] if nodes else self._root))
        for node in reversed(nodes):
            node.owners |= owner
            self._by_use.move_to_end(node)
        while self.tokens > self._max_tokens:
            self._remove(next(iter(self._by_use)))

    def _add(self, edge: bytes, parent: Node) -> Node:
        node = parent.children[edge[: self._block]] = Node(edge, 0, parent)
        self._by_use[node] = None
        self.tokens += len(edge) // TOKEN_BYTES + NODE_TOKENS
        return node

    def _split(self, node: Node, at: int) -> Node:
        """The node that ends `at` bytes into the edge of `node`: itself, or a new parent of the rest."""
        edge, parent = node.edge, node.parent
        if at == len(edge):
            return node
        assert parent is not None, "only the root has no parent, and it has no edge"
        upper = parent.children[edge[: self._block]] = Node(edge[:at], node.owners, parent)
        node.edge, node.parent = edge[at:], upper
        upper.children[node.edge[: self._block]] = node
        self._by_use[upper] = None
        self.tokens += NODE_TOKENS
        return upper

    def _remove(self, node: Node) -> None:
        assert node.parent is not None, "the root is never in use order"
        del node.parent.children[node.edge[: self._block]]
        del self._by_use[node]
        self.tokens -= len(node.edge) // TOKEN_BYTES + NODE_TOKENS

    def forget(self, owner: int) -> None:
        """Drop an owner, and the nodes that have no other. Walks the whole tree."""
        for node in list(self._by_use):
            node.owners &= ~owner
            if not node.owners:
                self._remove(node)

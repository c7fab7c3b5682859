"""DPLT's Bayesian network: attributes, their groups, latent attributes, and the tree over these; and back to columns.

Attributes are those of `silosynth.encoders.attributes`, with ``bins`` parts of each continuous level.

A group is a set of attributes and the table of all their combinations, its cells. Its latent attribute is a function of
the cell: the most probable class of a latent class model (classes within which attributes are independent) fitted to
the table by expectation maximisation. So a row is drawn from a state by drawing one of the state's cells, in proportion
to the table. The tree over all silos' latent attributes is learnt from tables of two of them (Chow and Liu 1968). All
of this is computed from noised tables alone.

Shapes: N rows, A attributes, C cells of a group, S states of a latent attribute, T of another, L latent attributes, R
rows that are drawn, Z levels of one attribute.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.core.conversation import State
from silosynth.core.errors import ConfigError
from silosynth.encoders.attributes import proper

LEAST = 1e-12
MOST_CELLS = 1 << 21
Pair = tuple[int, int]


def table(attributes_NA: Tensor, sizes: Sequence[int]) -> Tensor:
    """Counts, int64, of every combination of these attributes."""
    cell_N = cells(attributes_NA, sizes)
    return torch.bincount(cell_N, minlength=math.prod(sizes)).reshape(tuple(sizes))


def cells(attributes_NA: Tensor, sizes: Sequence[int]) -> Tensor:
    """Cell numbers (N,); the last attribute varies fastest."""
    cell_N = torch.zeros(len(attributes_NA), dtype=torch.int64)
    for of_N, size in zip(attributes_NA.T, sizes, strict=True):
        cell_N = cell_N * size + of_N
    return cell_N


def mutual_information(joint: Tensor) -> float:
    """Mutual information of the two attributes of a joint distribution, in nats."""
    product = joint.sum(1, keepdim=True) * joint.sum(0, keepdim=True)
    positive = joint > 0
    return float((joint[positive] * (joint[positive] / product[positive]).log()).sum())


def grouped(information: Sequence[Sequence[float]], sizes: Sequence[int], most: int, room: int) -> list[list[int]]:
    """Attributes in groups of ``most``, whatever they have in common, so that the number of groups is no secret.

    A group starts from the pair with most mutual information, and is joined by the attribute with most information
    about its members among those for which its table has ``room``; if there is none, by the one with fewest levels.

    Args:
        information: mutual information of each pair, symmetric.
        sizes: levels of each attribute.
        most: attributes of a group.
        room: cells of its table.

    Raises:
        ConfigError: a table is too large to be counted.
    """
    left, groups = list(range(len(sizes))), []
    while left:
        pairs = [(a, b) for a in left for b in left if a != b and sizes[a] * sizes[b] <= room]
        group = [max(pairs, key=lambda pair: information[pair[0]][pair[1]])[0] if pairs and most > 1 else left[0]]
        left.remove(group[0])
        while left and len(group) < most:
            group.append(_next(group, left, information, sizes, room))
            left.remove(group[-1])
        if math.prod(sizes[a] for a in group) > MOST_CELLS:
            raise ConfigError(
                f"The table of a group has at most {MOST_CELLS} cells",
                math.prod(sizes[a] for a in group),
                "Lower the option 'most', or leave out columns of many levels.",
            )
        groups.append(sorted(group))
    return sorted(groups)


def _next(
    group: Sequence[int], left: Sequence[int], information: Sequence[Sequence[float]], sizes: Sequence[int], room: int
) -> int:
    fitting = [a for a in left if math.prod(sizes[i] for i in (*group, a)) <= room]
    if fitting:
        return max(fitting, key=lambda a: sum(information[a][i] for i in group))
    return min(left, key=lambda a: sizes[a])


@dataclass(frozen=True)
class Latent:
    """A group of attributes and its latent attribute."""

    members: tuple[int, ...]  # numbers of its attributes
    sizes: tuple[int, ...]  # their levels
    share_C: Tensor  # float64: probability of each cell
    state_C: Tensor  # int64: the latent attribute of each cell

    @property
    def states(self) -> int:
        """S."""
        return int(self.state_C.max()) + 1

    def state(self) -> State:
        """In storable form."""
        members, sizes = list(self.members), list(self.sizes)
        return {"members": members, "sizes": sizes, "shares": self.share_C, "states": self.state_C}

    @classmethod
    def restored(cls, state: State) -> Latent:
        """What `state` stored."""
        return cls(tuple(state["members"]), tuple(state["sizes"]), state["shares"], state["states"])

    def of(self, attributes_NA: Tensor) -> Tensor:
        """States (N,) of rows."""
        return self.state_C[cells(attributes_NA[:, list(self.members)], self.sizes)]

    def draw(self, state_N: Tensor, draw: torch.Generator) -> Tensor:
        """Attributes (N, members) for states."""
        cell_N = torch.zeros_like(state_N)
        for state in range(self.states):
            rows = torch.nonzero(state_N == state).flatten()
            weight_C = (self.share_C + LEAST) * (self.state_C == state)
            if len(rows):
                cell_N[rows] = torch.multinomial(weight_C, len(rows), replacement=True, generator=draw)
        parts = []
        for size in reversed(self.sizes):
            parts.append(cell_N % size)
            cell_N = cell_N // size
        return torch.stack(parts[::-1], dim=1)


def fit_latent(members: Sequence[int], noised: Tensor, states: int, fits: int, draw: torch.Generator) -> Latent:
    """The latent attribute of a group, from its noised table; states without cells are dropped."""
    share = proper(noised)
    sizes, cell_count = tuple(noised.shape), noised.numel()
    if cell_count <= states:
        state_C = torch.arange(cell_count)
    else:
        _, state_C = torch.unique(_classes(share, states, fits, draw), return_inverse=True)
    return Latent(tuple(members), sizes, share.flatten(), state_C)


def _classes(share: Tensor, states: int, fits: int, draw: torch.Generator) -> Tensor:
    """The most probable class (C,) of each cell."""
    share_C = share.flatten()
    member_CS = torch.rand(len(share_C), states, generator=draw, dtype=torch.float64) + 0.1
    member_CS = member_CS / member_CS.sum(1, keepdim=True)
    places = [torch.arange(size) for size in share.shape]
    level_CA = torch.cartesian_prod(*places).reshape(len(share_C), -1)
    for _ in range(fits):
        weight_CS = share_C[:, None] * member_CS
        total_S = weight_CS.sum(0) + LEAST
        log_CS = total_S.log().expand(len(share_C), states).clone()
        for level_C, size in zip(level_CA.T, share.shape, strict=True):
            of_ZS = torch.zeros(size, states, dtype=torch.float64).index_add_(0, level_C, weight_CS)
            log_CS += ((of_ZS + LEAST) / total_S).log()[level_C]
        member_CS = log_CS.softmax(1)
    return member_CS.argmax(1)


@dataclass(frozen=True)
class Edge:
    """Attribute ``child`` depends on ``parent`` by the joint distribution (S of the parent, T of the child)."""

    parent: int
    child: int
    joint_ST: Tensor


@dataclass(frozen=True)
class Tree:
    """Attribute 0 first, then the others, each after its parent."""

    first_S: Tensor  # distribution of attribute 0
    edges: tuple[Edge, ...]

    def draw(self, rows: int, draw: torch.Generator) -> Tensor:
        """States (R, L)."""
        states = {0: torch.multinomial(self.first_S + LEAST, rows, replacement=True, generator=draw)}
        for edge in self.edges:
            row_RT = (edge.joint_ST + LEAST)[states[edge.parent]]
            states[edge.child] = torch.multinomial(row_RT, 1, generator=draw).flatten()
        return torch.stack([states[i] for i in range(len(states))], dim=1)

    def state(self) -> State:
        """In storable form."""
        edges = [{"parent": edge.parent, "child": edge.child, "joint": edge.joint_ST} for edge in self.edges]
        return {"first": self.first_S, "edges": edges}

    @classmethod
    def restored(cls, state: State) -> Tree:
        """What `state` stored."""
        return cls(state["first"], tuple(Edge(e["parent"], e["child"], e["joint"]) for e in state["edges"]))


def learn_tree(first_S: Tensor, joint: Mapping[Pair, Tensor]) -> Tree:
    """The spanning tree with most mutual information, by Prim's algorithm.

    Args:
        first_S: distribution of attribute 0, used where there is no other.
        joint: distributions of all pairs, each with its lower number first.
    """
    size = 1 + max((b for _, b in joint), default=0)
    reached, edges, information = [0], [], {pair: mutual_information(table) for pair, table in joint.items()}
    while len(reached) < size:
        ends = [(a, b) for a in reached for b in range(size) if b not in reached]
        parent, child = max(ends, key=lambda end: information[min(end), max(end)])
        table = joint[min(parent, child), max(parent, child)]
        edges.append(Edge(parent, child, table if parent < child else table.T))
        reached.append(child)
    return Tree(edges[0].joint_ST.sum(1) if edges else first_S, tuple(edges))

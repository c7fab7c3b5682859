"""The tree over all silos' latent attributes: learnt from tables of two of them, and drawn from (Chow and Liu 1968).

Shapes: L latent attributes, R rows that are drawn, S states of one attribute, T of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from silosynth.algorithms.dplt.latents import LEAST, mutual_information

Pair = tuple[int, int]


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
            of_R = (edge.joint_ST + LEAST)[states[edge.parent]]
            states[edge.child] = torch.multinomial(of_R, 1, generator=draw).flatten()
        return torch.stack([states[i] for i in range(len(states))], dim=1)

    def state(self) -> dict[str, object]:
        """In storable form."""
        edges = [{"parent": edge.parent, "child": edge.child, "joint": edge.joint_ST} for edge in self.edges]
        return {"first": self.first_S, "edges": edges}


def stored(state: dict[str, object]) -> Tree:
    """What `Tree.state` stored."""
    edges = tuple(Edge(**{"parent": e["parent"], "child": e["child"], "joint_ST": e["joint"]}) for e in state["edges"])  # type: ignore[attr-defined]
    return Tree(state["first"], edges)  # type: ignore[arg-type]


def learn(first_S: Tensor, joint: Mapping[Pair, Tensor]) -> Tree:
    """The spanning tree with most mutual information, by Prim's algorithm.

    Args:
        first_S: distribution of attribute 0, where there is no other.
        joint: distributions of all pairs, each with its lower number first.
    """
    size = 1 + max((b for _, b in joint), default=0)
    there, edges, information = [0], [], {pair: mutual_information(table) for pair, table in joint.items()}
    while len(there) < size:
        ends = [(a, b) for a in there for b in range(size) if b not in there]
        parent, child = max(ends, key=lambda end: information[min(end), max(end)])
        table = joint[min(parent, child), max(parent, child)]
        edges.append(Edge(parent, child, table if parent < child else table.T))
        there.append(child)
    return Tree(edges[0].joint_ST.sum(1) if edges else first_S, tuple(edges))

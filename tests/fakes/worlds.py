"""A mesh by counts: no socket, no key, no clock; who links to whom, as the real choice has it."""

from __future__ import annotations

import random
from collections import deque

from mesh.base.names import NodeId
from mesh.degree import SETTLE_S, Neighbour, Other, choose, may_enter, spread, surplus


class World:
    """A mesh by counts: rounds of ten seconds, in which every machine chooses, is let in or not, and lets go."""

    def __init__(self, count: int, dialable: float, seed: int) -> None:
        self.chance = random.Random(seed)
        self.nodes = [NodeId(self.chance.randbytes(16)) for _ in range(count)]
        self.reachable = {n for n in self.nodes if self.chance.random() < dialable}
        self.order = {n: spread((m for m in self.nodes if m != n), self.chance.getrandbits(128)) for n in self.nodes}
        self.links: dict[NodeId, dict[NodeId, bool]] = {n: {} for n in self.nodes}
        self.until: dict[tuple[NodeId, NodeId], int] = {}
        self.round = 0

    def kill(self, share: float) -> None:
        for node in self.chance.sample(self.nodes, int(share * len(self.nodes))):
            for peer in self.links.pop(node):
                del self.links[peer][node]
        self.nodes = list(self.links)

    def view(self, node: NodeId) -> dict[NodeId, Neighbour]:
        return {p: Neighbour(mine, False, SETTLE_S, len(self.links[p])) for p, mine in self.links[node].items()}

    def step(self) -> int:
        changes, self.round = 0, self.round + 1
        for node in self.chance.sample(self.nodes, len(self.nodes)):
            others = [
                Other(o, o in self.reachable, self.until.get((node, o), 0) <= self.round, o in self.links, len(self.links.get(o, ())))
                for o in self.order[node]
            ]
            for peer in choose(node, others, self.view(node), (), ()):
                if peer in self.links and may_enter(len(self.nodes) - 1, sum(not mine for mine in self.links[peer].values())):
                    self.links[node][peer], self.links[peer][node] = True, False
                    changes += 1
                else:
                    self.until[node, peer] = self.round + 6
        for node in self.nodes:
            for peer in surplus(node, [m for m in self.nodes if m != node], self.view(node)):
                del self.links[node][peer], self.links[peer][node]
                self.until[peer, node] = self.round + 6
                changes += 1
        return changes

    def settle(self, rounds: int) -> None:
        for _ in range(rounds):
            if not self.step():
                return

    def hops(self, start: NodeId) -> dict[NodeId, int]:
        far, todo = {start: 0}, deque([start])
        while todo:
            here = todo.popleft()
            for there in self.links[here]:
                if there not in far:
                    far[there] = far[here] + 1
                    todo.append(there)
        return far

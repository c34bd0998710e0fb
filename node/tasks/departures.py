"""What ends with a member: tasks it asked for, tasks asked of it, and its open questions.

Looks at the directory whenever a certificate or an expulsion came, and at the start, so it holds after a restart too.
"""

from __future__ import annotations

import trio

from mesh.base.names import NodeId
from node.tasks.delegation import CancelAsked
from node.tasks.ground import Ground
from node.tasks.outgoing import Outgoing
from node.tasks.task import REQUESTED, WORKED
from node.tasks.workshop import Workshop

MEMBERSHIP_KINDS = (1, 4)
"""Certificates and expulsions, as the mesh numbers its records."""


async def run_departures(ground: Ground, workshop: Workshop, outgoing: Outgoing) -> None:
    """End what machines that were expelled have to do with tasks here, until cancelled.

    Args:
        ground: What runs stand on.
        workshop: Runs what others asked for.
        outgoing: Keeps what was asked of others.
    """
    changes = ground.records.changes(MEMBERSHIP_KINDS)
    async with trio.open_nursery() as nursery:
        while True:
            for task in ground.ledger.live(WORKED):
                if not task.cancel_asked and is_out(ground, task.key.requester):
                    nursery.start_soon(workshop.advance, task.key, CancelAsked())
            for task in ground.ledger.live(REQUESTED):
                if is_out(ground, task.worker):
                    nursery.start_soon(outgoing.disown, task.key)
            await changes.receive()


def is_out(ground: Ground, node: NodeId) -> bool:
    """Whether a machine, or this one itself, was expelled."""
    member = ground.directory.member(node)
    return ground.directory.me.state == "expelled" or (member is not None and member.state == "expelled")

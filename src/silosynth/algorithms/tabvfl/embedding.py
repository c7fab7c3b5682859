"""Latent vectors of whatever rows silos have, from networks that are trained.

Shapes: N rows, D latents, K classes (or 1, for a number).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from silosynth.algorithms.tabvfl.batches import spans
from silosynth.algorithms.tabvfl.host import Host
from silosynth.algorithms.tabvfl.messages import ALL, FINETUNING, Embedded, Look, TabVFLConfig
from silosynth.core.conversation import Conversation, Progress
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message
from silosynth.core.roster import Roster
from silosynth.core.streams import Streams

M = TypeVar("M", bound=Message)


def restored(config: TabVFLConfig, model: dict[str, Any], device: torch.device) -> Host:
    """The coordinator's networks of a trained model."""
    host = Host(model["widths"], model["classes"], config, Streams(0), device)
    host.restore(model["host"])
    return host


def embed(roster: Roster, host: Host, rows: int) -> Conversation[tuple[Tensor, Tensor]]:
    """Latents (N, D) of all the rows that silos have, and what is predicted of them (N, K)."""
    parts = []
    for start, stop in spans(rows):
        replies = said((yield roster.everyone(Look(FINETUNING, ALL, start, stop))), Embedded)
        parts.append(host.look([reply.z_BW for reply in replies.values()]))
        yield Progress("embedding", stop, rows)
    latents, outs = zip(*parts, strict=True)
    return torch.cat(latents), torch.cat(outs)


def said(replies: Mapping[str, Message], kind: type[M]) -> dict[str, M]:
    """The replies, all of the kind that was asked for."""
    found = {}
    for party, reply in replies.items():
        if not isinstance(reply, kind):
            raise ProtocolError(f"Silo {party!r} answers what it was asked", type(reply).__name__, "Compare versions.")
        found[party] = reply
    return found

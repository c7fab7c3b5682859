"""Charging a private training before its first step: what every algorithm does alike, on both sides.

1. *Learn.* Each silo learns its encoders from noised counts, by its part of the target (`Target.encoder_budget`), and
   replies with a noised row count and the events of both.
2. *Agree.* The silos agree on a secret for this training (`silosynth.privacy.agreement`).
3. *Charge.* The coordinator solves for the noise of all steps to come and has every silo charge them: `charge`.
4. *Tag.* Each silo checks that all silos' events together cost at most the target, its own among them, and confirms
   with a tag derived from the secret and its row count: `Account.charge`.

A silo then takes no more steps than it was charged for: `Account.take_step`. Events of other silos are the
coordinator's word.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from silosynth.core.conversation import Conversation, Roster, check_same_rows, expect
from silosynth.core.errors import ProtocolError
from silosynth.core.messages import Message, Release, from_state, to_state
from silosynth.privacy.accounting import cost
from silosynth.privacy.events import Event, Target

ROUNDING = 1e-9  # relative, of a cost that was solved for


class Charge(Message, release=Release.NOISED):
    """Coordinator: charge ``events`` for the steps to come.

    Attributes:
        rows: the mean of the silos' noised row counts.
        learnt: events that all silos have charged so far.
        events: of each silo, or of all silos together where joint.
    """

    rows: int
    learnt: tuple[Event, ...]
    events: tuple[Event, ...]


class Charged(Message, release=Release.NOISED):
    """Silo: charged. Equal tags (32 bytes) mean equal row counts; the coordinator learns no more from them."""

    tag: bytes
    events: tuple[Event, ...]


def mean_rows(counts: Sequence[int]) -> int:
    """The mean of silos' row counts of the same rows, which differ by their noise; at least 2."""
    return max(2, round(sum(counts) / len(counts)))


def charge(
    roster: Roster, rows: int, learnt: Sequence[Event], solve: Callable[[Sequence[Event]], tuple[Event, ...]]
) -> Conversation[Charge]:
    """The coordinator's side of steps 3 and 4.

    Args:
        roster: the silos.
        rows: see `mean_rows`.
        learnt: events that all silos have charged so far.
        solve: the events of all steps to come, given those.

    Raises:
        ConfigError: the target leaves no budget for the steps.
        ProtocolError: a silo refuses; or silos hold unequal numbers of rows.
    """
    ask = Charge(rows, tuple(learnt), solve(learnt))
    charged = expect((yield roster.everyone(ask)), Charged)
    check_same_rows(roster, [reply.tag for reply in charged])
    return ask


class Account:
    """What a silo has charged for one training, with what it may: at most its target.

    Attributes:
        target: of the whole training.
        learnt: events of this silo's encoders and row count.
        paid: what was charged for the steps; None before.
        taken: steps taken of those charged.
    """

    def __init__(self) -> None:
        self.target, self.learnt = Target(), tuple[Event, ...]()
        self.paid: Charge | None = None
        self.taken = 0

    def open(self, target: Target, learnt: Sequence[Event]) -> None:
        """Start a training that has charged ``learnt`` for its encoders and row count."""
        self.target, self.learnt, self.paid, self.taken = target, tuple(learnt), None, 0

    def charge(self, ask: Charge, silos: int, tag: bytes, later: int = 0) -> Charged:
        """Charge ``ask.events``, once; the last ``later`` of them are listed by the messages that they belong to.

        Raises:
            ProtocolError: charged before, nothing learnt, own events missing in ``ask.learnt``, or above the target.
        """
        steps = [event for event in ask.events for _ in range(1 if event.joint else silos)]
        total = cost([*ask.learnt, *steps], self.target)
        known = self.learnt and not Counter(self.learnt) - Counter(ask.learnt)
        if self.paid is not None or not (known and total <= self.target.epsilon * (1 + ROUNDING)):
            raise ProtocolError(
                "What a silo is charged costs at most the target, once, with what all silos have charged before",
                f"epsilon {total:.4g} of {self.target.epsilon:g}",
                "Both sides must run the same version of silosynth.",
            )
        self.paid = ask
        return Charged(tag, ask.events[: len(ask.events) - later])

    @property
    def charged(self) -> Charge:
        """What was charged.

        Raises:
            ProtocolError: nothing yet.
        """
        if self.paid is None:
            raise ProtocolError("Private steps are taken after they were charged", "not charged")
        return self.paid

    def take_step(self) -> int:
        """The number of the next step, from 0, of the first event that was charged.

        Raises:
            ProtocolError: all steps that were charged have been taken.
        """
        if self.taken >= self.charged.events[0].times:
            raise ProtocolError("A silo takes no more private steps than were charged", self.taken)
        self.taken += 1
        return self.taken - 1

    def state(self) -> dict[str, Any]:
        """All that is needed to continue."""
        return {
            "target": to_state(self.target),
            "learnt": [to_state(event) for event in self.learnt],
            "paid": None if self.paid is None else to_state(self.paid),
            "taken": self.taken,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from what `state` returned."""
        self.open(from_state(Target, state["target"]), [from_state(Event, event) for event in state["learnt"]])
        self.paid = None if state["paid"] is None else from_state(Charge, state["paid"])
        self.taken = state["taken"]

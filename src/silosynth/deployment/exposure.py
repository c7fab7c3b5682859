"""What a silo's policy lets the worst coordinator learn, in plain words: for the officer who signs the policy.

The worst coordinator runs any job that the policy allows, as often as it allows, with options of its choice and other
messages than the protocol's; it keeps all that it gets. It cannot open what silos seal for each other, unless a silo
works with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from silosynth import catalog
from silosynth.deployment.policy import SiloPolicy
from silosynth.privacy.accounting import DELTA

UNNOISED = {
    "silofuse": "one vector for each person, from which most of the row can be worked out, knowing some others",
    "silofuse-joint": "one vector for each person, also for other silos, from which most of the row can be worked out",
    "e2edistr": "one vector for each person, and how to change it, from which most of the row can be worked out",
    "vtgan": "features of each person's row and what levels it holds, from which rows can be worked out",
    "vflgan": "features of each person's row, from which rows can be worked out",
    "vflgan-base": "features of each person's row, from which rows can be worked out",
    "vertigan": "gradients over batches of rows, from which rows can be worked out in part",
    "gdts": "exact statistics of each column, and weights of a network trained on the rows",
    "dplt": "exact tables of pairs of attributes",
    "mst": "exact tables of pairs of columns",
    "aim": "exact tables of pairs of columns",
}
"""What leaves a silo in an algorithm's jobs without noise."""


@dataclass(frozen=True)
class Exposure:
    """One thing that the worst coordinator can learn or do.

    Attributes:
        learns: in words.
        key: the key of ``policy.toml`` that closes it, and to what value; empty where none does.
        weight: from 3 (rows of persons) to 0 (cannot be helped), for the order.
    """

    learns: str
    key: str
    weight: int


@dataclass(frozen=True)
class RuleInForce:
    """A key of ``policy.toml``, its value for people, and what it says."""

    key: str
    value: str
    says: str


def rules_in_force(policy: SiloPolicy) -> list[RuleInForce]:
    """All rules of a policy, those that it leaves at their defaults included."""
    return [RuleInForce(key, _in_words(getattr(policy, key)), says) for key, says in policy.meanings().items()]


def _in_words(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return "no limit" if value == math.inf else f"{value:,}" if isinstance(value, int) else f"{value:g}"
    return str(value)


def exposures(policy: SiloPolicy) -> list[Exposure]:
    """What the worst coordinator learns under a policy, worst first."""
    found = [
        *_noise(policy),
        *_tables(policy),
        *_rows(policy),
        *_links(policy),
        *_synthetic(policy),
        *_who(policy),
        *_always(policy),
    ]
    return sorted(found, key=lambda one: -one.weight)


def _noise(policy: SiloPolicy) -> Iterator[Exposure]:
    if policy.public_seed:
        yield Exposure(
            "all noise, by fixing the seed from which it is drawn: it subtracts the noise, whatever epsilon is stated",
            "public_seed = false", 3,
        )  # fmt: skip
    if policy.budgeted:
        most = min(policy.largest_epsilon, policy.largest_epsilon_per_job)
        yield Exposure(
            f"of one job: {_odds(most, policy.largest_delta)}", "largest_epsilon_per_job, smaller", 2 if most > 2 else 1
        )
        if policy.largest_epsilon == math.inf:
            yield Exposure(
                f"of all jobs together: as much as of one, as often as it starts one: {policy.jobs_per_day} a day",
                "largest_epsilon", 3,
            )  # fmt: skip
        elif policy.largest_epsilon > policy.largest_epsilon_per_job:
            yield Exposure(
                f"of all jobs together: {_odds(policy.largest_epsilon, policy.largest_delta)}",
                "largest_epsilon, smaller",
                2,
            )
        if policy.largest_delta > DELTA:
            yield Exposure(
                f"with a probability of up to {policy.largest_delta:g} what the epsilon does not allow, such as the "
                "name of a level that one person holds",
                f"largest_delta = {DELTA:g}", 2,
            )  # fmt: skip
        return
    for name in policy.algorithms:
        if name in UNNOISED and not (policy.require_dp and not _private(name)):
            with_dp = " (with dp, whose epsilon the coordinator chooses: noise may be next to none)"
            yield Exposure(
                f"with {name}: {UNNOISED[name]}{with_dp if policy.require_dp else ''}",
                "largest_epsilon; or leave it out of algorithms", 3,
            )  # fmt: skip
    if policy.require_dp:
        yield Exposure("anything that an epsilon of its choice allows: a huge one adds no noise", "largest_epsilon", 3)


def _tables(policy: SiloPolicy) -> Iterator[Exposure]:
    """What opens in jobs that count; under a budget it is charged like all else, and nothing opens without noise."""
    names = " or ".join(name for name in policy.algorithms if name in catalog.names("counting"))
    counting = [name for name in catalog.ALGORITHMS if catalog.ALGORITHMS[name].counts] + catalog.names("counting")
    if (dealt := [name for name in policy.algorithms if name in counting]) and not policy.require_dealer:
        yield Exposure(
            f"with {' or '.join(dealt)}: if another silo works with it, the columns that are counted, row by row: it "
            "deals the random numbers that hide them",
            "require_dealer = true", 2,
        )  # fmt: skip
    if not names or policy.budgeted:
        return
    if policy.open_tables == "exact" and not policy.require_dp:
        yield Exposure(
            f"with {names}: exactly how many people hold each two levels of any columns, also of other silos; from two "
            "such jobs what a person holds who joined or left in between",
            'open_tables = "noised", and largest_epsilon', 3,
        )  # fmt: skip
    elif policy.open_tables != "no":
        yield Exposure(
            f"with {names}: how many people hold each two levels of any columns, with noise of an epsilon of its "
            "choice: it may be next to none",
            "largest_epsilon", 3,
        )  # fmt: skip
    if policy.open_figures and policy.open_tables != "exact" and not policy.require_dp:
        yield Exposure(
            f"with {names}: of each two columns how far their table is from up to four of its choice, exactly, and so "
            "two or three counts in each job; in many jobs the whole table",
            "open_figures = false", 3,
        )  # fmt: skip


def _private(name: str) -> bool:
    """Whether an algorithm has a target."""
    return any(hasattr(config, "dp") for config in catalog.algorithm(name, kind=None).presets.values())


def _odds(epsilon: float, delta: float) -> str:
    """How sure a guess becomes, rounded up: of two tables, one with the person and one without, which is it?"""
    likely = math.ceil(10_000 * (delta + math.exp(epsilon)) / (1 + math.exp(epsilon))) / 100 if epsilon < 50 else 100.0
    return (
        "whether somebody is in this table, where a guess was right half of the time, is guessed right at most "
        f"{likely:g} % of the time (epsilon {epsilon:g}, delta {delta:g})"
    )


def _rows(policy: SiloPolicy) -> Iterator[Exposure]:
    if policy.min_count < 5 and not policy.budgeted:
        people = "one person holds" if policy.min_count == 1 else f"{policy.min_count} people hold"
        yield Exposure(f"names of levels that {people}, and ends of ranges from as few", "min_count = 5", 3)
    if not policy.budgeted:
        yield Exposure("the exact number of rows", "largest_epsilon", 1)
    elif policy.exact_rows:
        yield Exposure(
            "the exact number of rows, and how many all silos have in common: they are exempt from the epsilon",
            "exact_rows = false", 2,
        )  # fmt: skip
    few = policy.least_rows < 100
    yield Exposure(
        f"a model of as few as {policy.least_rows} people; and of fewer, that they are fewer",
        "least_rows = 100" if few else "", 2 if few else 0,
    )  # fmt: skip


def _links(policy: SiloPolicy) -> Iterator[Exposure]:
    linking = [*UNNOISED, *catalog.names("counting")]
    vertical = [name for name in policy.algorithms if name in linking and not catalog.ALGORITHMS[name].horizontal]
    if not vertical:
        return
    if not policy.require_alignment:
        yield Exposure(
            "a model of all rows, also of people whom no other silo holds: it need not have rows linked",
            "require_alignment = true", 2,
        )  # fmt: skip
    if policy.own_rows and "silofuse" in policy.algorithms and not policy.budgeted:
        yield Exposure(
            "synthetic rows by decoders that have been trained on people too whom no other silo holds",
            "own_rows = false", 1,
        )  # fmt: skip
    if policy.keyed_hash and not (policy.budgeted and not policy.exact_rows):
        yield Exposure(
            "a pseudonym of each person; and, if a silo works with it, who they are: identifiers that can be guessed "
            "are tried one after the other",
            "keyed_hash = false", 3,
        )  # fmt: skip
    if policy.psi_queries and not (policy.budgeted and not policy.exact_rows):
        yield Exposure(
            f"if another silo works with it, which people of a list are among the rows: a list {policy.psi_queries:g} "
            f"times as long as the table in each job, {policy.jobs_per_day} jobs a day",
            "psi_queries or jobs_per_day, smaller", 2,
        )  # fmt: skip


def _synthetic(policy: SiloPolicy) -> Iterator[Exposure]:
    if policy.share_synthetic and policy.most_rows_drawn:
        noised = policy.budgeted
        yield Exposure(
            f"up to {policy.most_rows_drawn:,} synthetic rows of each model, then or later"
            + (
                f", once a person here has approved them, within {policy.approval_hours:g} hours"
                if policy.approval == "person"
                else ""
            )
            + ("" if noised else ", of a model that has seen each person: rows of persons may be among them"),
            "share_synthetic = false, or most_rows_drawn, smaller"
            + ("" if policy.approval == "person" else '; approval = "person" to see them first'),
            0 if noised else 2,
        )  # fmt: skip

    if policy.share_synthetic and policy.share_decoders:
        yield Exposure(
            "with mst or aim: the model of a job with dp, from which it draws as many rows as it likes, under any "
            "conditions" + ("" if policy.budgeted else ", and whose epsilon it chooses: noise may be next to none"),
            "share_decoders = false", 0 if policy.budgeted else 3,
        )  # fmt: skip
    if policy.conditions and policy.most_rows_drawn:
        columns, few = ", ".join(policy.conditions), policy.least_condition_rows < 100
        yield Exposure(
            f"rows of its choice from {columns}: what the model makes of people of whom {policy.least_condition_rows} "
            "are expected"
            + ("" if policy.budgeted else
               f"; of {policy.conditions_per_day} conditions a day whether so many real rows fulfil each, by many how "
               "many; and, of algorithms that send it vectors, about each person whether she fulfils one"),
            "conditions = []; conditions_per_day, smaller" + ("; least_condition_rows = 100" if few else ""),
            0 if policy.budgeted else 2,
        )  # fmt: skip

    if policy.rules != "no" and policy.most_rows_drawn and not policy.budgeted:
        yield Exposure("ends and shares of differences and combinations that it names in rules", 'rules = "no"', 1)
    if policy.rules == "all" and policy.most_rows_drawn:
        yield Exposure(
            f"of up to {policy.most_rows_drawn:,} synthetic rows of each model, whether columns that stay here keep "
            "rules of its choice, alone and beside another silo's; all of these values, if it works with such a silo"
            + ("" if policy.budgeted else "; of algorithms that send it vectors, about each person whether she does"),
            'rules = "shared"', 0 if policy.budgeted else 2,
        )  # fmt: skip


def _who(policy: SiloPolicy) -> Iterator[Exposure]:
    if not policy.allow_coordinators:
        yield Exposure(
            "all of this is also open to whoever provisioned the federation, who can issue a second certificate",
            "allow_coordinators", 1,
        )  # fmt: skip
    if "*" in policy.submitters:
        yield Exposure("all of this is open to every operator who may start jobs", "submitters", 1)
    yield Exposure(
        f"all of this again {policy.jobs_per_day} times a day"
        + (
            f", each time once a person here has said yes to the job's terms, within {policy.approval_hours:g} hours"
            if policy.approve_start
            else ", without a word from anybody here"
        ),
        "; ".join(_fewer_jobs(policy)), 0 if policy.approve_start or policy.jobs_per_day <= 10 else 1,
    )  # fmt: skip


def _fewer_jobs(policy: SiloPolicy) -> Iterator[str]:
    if policy.jobs_per_day > 1:
        yield "jobs_per_day, smaller"
    if not policy.approve_start:
        yield "approve_start = true to say yes to each job first"


def _always(policy: SiloPolicy) -> Sequence[Exposure]:
    return [
        Exposure("names and kinds of the columns in silo.toml; leave out what it need not know", "", 0),
        Exposure("nothing by it, but jobs are forgotten here at its wish: models and tables go, no ledger", "", 0),
        Exposure("which rule of this policy refused a message, and when; never a value", "", 0),
        Exposure(
            "what silos seal for each other, if one of them works with it; together they can also subtract random "
            "numbers by which rows are hidden from each of them alone",
            "", 0,
        ),
    ]  # fmt: skip

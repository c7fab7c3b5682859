"""A site's facts as Prometheus reads them, and whether the site is well."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from silosynth.deployment.facts import UNFINISHED, moment

Facts = Mapping[str, Any]
Sample = tuple[Mapping[str, str], float]
STATES = (*UNFINISHED, "failed", "refused", "done", "forgotten")
FAMILIES = {
    "silosynth_up": ("gauge", "Whether the site's engine is at work"),
    "silosynth_jobs": ("gauge", "Jobs by state"),
    "silosynth_job_progress": ("gauge", "Share of its stage that a running job has done"),
    "silosynth_job_seconds_since_exchange": ("gauge", "Seconds since an unfinished job last exchanged a message"),
    "silosynth_seconds_since_exchange": ("gauge", "Seconds since any job last exchanged a message"),
    "silosynth_message_bytes_total": ("counter", "Bytes of messages, by direction as seen from this site"),
    "silosynth_messages_total": ("counter", "Messages sent and received"),
    "silosynth_refusals_total": ("counter", "Asks that this silo refused, and jobs that failed at the coordinator"),
    "silosynth_held_rows": ("gauge", "Synthetic rows that wait for a person's decision"),
    "silosynth_decisions_waiting": ("gauge", "Jobs, or rows of jobs, that wait for a person's decision"),
    "silosynth_silo_connected": ("gauge", "Whether a silo is connected, at the coordinator"),
    "silosynth_certificate_days_left": ("gauge", "Days until the first certificate of this site expires"),
    "silosynth_epsilon_spent": ("gauge", "Epsilon of all noised releases of this silo"),
    "silosynth_epsilon_left": ("gauge", "What is left of largest_epsilon; absent without a limit"),
}
"""All that is exported: type and meaning, by name."""


def metrics(facts: Facts, now: float) -> str:
    """The facts in Prometheus's text format."""
    lines = []
    for name, samples in _samples(facts, now):
        kind, meaning = FAMILIES[name]
        if found := list(samples):
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
            lines += [f"{name}{_labels(labels)} {value:.15g}" for labels, value in found]
    return "\n".join(lines) + "\n"


def health(facts: Facts) -> tuple[bool, str]:
    """Whether the site works, and in a few words why not; it tells nothing of jobs."""
    if not facts["running"]:
        return False, "the engine is not running"
    left = facts["certificate"]["days_left"]
    if left is not None and left < 0:
        return False, "the certificate has expired"
    return True, "ok"


def _samples(facts: Facts, now: float) -> Iterator[tuple[str, Iterable[Sample]]]:
    jobs: list[Facts] = [job for job in facts["jobs"] if job["state"] != "unreadable"]
    open_jobs = [job for job in jobs if job["state"] in UNFINISHED]
    states = Counter(job["state"] for job in jobs)
    since = {job["job"]: now - moment(job["last_exchange"]) for job in jobs if job["last_exchange"]}
    yield "silosynth_up", [({}, facts["running"])]
    yield "silosynth_jobs", [({"state": state}, states[state]) for state in STATES]
    running = [job for job in jobs if job["state"] == "running" and job.get("total")]
    yield "silosynth_job_progress", [({"job": job["job"]}, job["done"] / job["total"]) for job in running]
    waits = [({"job": job["job"]}, since[job["job"]]) for job in open_jobs if job["job"] in since]
    yield "silosynth_job_seconds_since_exchange", waits
    yield "silosynth_seconds_since_exchange", [({}, min(since.values()))] if since else []
    directions = ("sent", "received")
    sizes = [({"direction": which}, sum(job[which] for job in jobs)) for which in directions]
    yield "silosynth_message_bytes_total", sizes
    yield "silosynth_messages_total", [({}, sum(job["messages"] for job in jobs))]
    refusals = sum(job["refusals"] + (job["state"] == "failed" and not job["refusals"]) for job in jobs)
    yield "silosynth_refusals_total", [({}, refusals)]
    yield "silosynth_held_rows", [({}, sum(job.get("held", {}).get("rows", 0) for job in jobs))]
    yield "silosynth_decisions_waiting", [({}, sum("held" in job for job in jobs))]
    yield "silosynth_silo_connected", [({"silo": one["silo"]}, one["connected"]) for one in facts["silos"]]
    yield "silosynth_certificate_days_left", _known(facts["certificate"]["days_left"])
    budget = facts.get("budget", {})
    yield "silosynth_epsilon_spent", _known(budget.get("epsilon"))
    yield "silosynth_epsilon_left", _known(budget.get("left"))


def _known(value: float | None) -> list[Sample]:
    return [] if value is None else [({}, value)]


def _labels(labels: Mapping[str, str]) -> str:
    escaped = (
        f'{key}="{value}"'.replace("\n", "\\n")
        for key, text in labels.items()
        for value in [text.replace("\\", "\\\\").replace('"', '\\"')]
    )
    return "{" + ",".join(escaped) + "}" if labels else ""

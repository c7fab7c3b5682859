"""Shows that a refactoring moved nothing: `python -m tests.recorded check`. See the package's docstring."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

from tests.recorded import records
from tests.recorded.records import RUNTIMES
from tests.recorded.settings import APART, NAMES

Plan = dict[str, list[str]]  # which settings to fit in which runtime
Digests = dict[str, str]  # by facet


def main() -> int:
    arguments = _arguments()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        print(f"There is no such setting: {', '.join(unknown)}. Known: {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    if arguments.action == "show":
        return _show(arguments.names or NAMES)
    plan = {"inprocess": arguments.names or NAMES, "processes": arguments.names or APART}
    if arguments.runtime:
        plan = {arguments.runtime: plan[arguments.runtime]}
    return _record(plan, arguments.at) if arguments.action == "record" else _check(plan)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.recorded", description=__doc__)
    parser.add_argument("action", choices=("record", "check", "show"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="settings (default: all); `show` lists them")
    parser.add_argument("--runtime", choices=RUNTIMES, help="this runtime only (default: both)")
    parser.add_argument("--at", default="HEAD", metavar="REV", help="record: the commit whose src is recorded")
    return parser.parse_intermixed_args()  # names may follow options


def _record(plan: Plan, revision: str) -> int:
    """Record what is the same in all runtimes; 1 if something is not."""
    with records.source_at(revision) as (source, commit):
        fits = _fit(plan, source)
    made = {name: list(by_runtime.values()) for name, by_runtime in fits.items()}
    same = {name: first for name, (first, *others) in made.items() if all(other == first for other in others)}
    records.write({name: {"commit": commit, **digests} for name, digests in same.items()})
    for name in sorted(set(fits) - set(same)):
        print(f"{name}: not recorded, runtimes differ")
    print(f"{len(same)} settings recorded at {commit} for: {records.arithmetic()}")
    return 0 if len(same) == len(fits) else 1


def _check(plan: Plan) -> int:
    """Compare this tree with the record; 1 if anything differs or is not recorded."""
    kept = records.read()
    if not kept:
        print(records.REMEDY)
        return 1
    verdicts = {name: _verdict(kept.get(name), made) for name, made in _fit(plan, records.ROOT / "src").items()}
    for name, verdict in sorted(verdicts.items()):
        print(f"{name}: {verdict}")
    equal = list(verdicts.values()).count("equal")
    print(f"{equal} of {len(verdicts)} equal")
    return 0 if equal == len(verdicts) else 1


def _verdict(kept: Digests | None, made: dict[str, Digests]) -> str:
    if kept is None:
        return "not recorded"
    moved = {
        runtime: [facet for facet, digest in digests.items() if digest != kept.get(facet)]
        for runtime, digests in made.items()
    }
    differing = [f"differs ({runtime}): {', '.join(facets)}" for runtime, facets in moved.items() if facets]
    return "; ".join(differing) or "equal"


def _show(names: list[str]) -> int:
    kept = records.read()
    print(records.arithmetic() if kept else records.REMEDY)
    for name in names:
        digests = kept.get(name)
        print(f"{name}: " + (" ".join(f"{key}={value[:10]}" for key, value in digests.items()) if digests else "–"))
    return 0


def _fit(plan: Plan, source: Path) -> dict[str, dict[str, Digests]]:
    """Each setting's digests, by setting and runtime."""
    fits: dict[str, dict[str, Digests]] = {}
    for runtime, names in plan.items():
        start = time.perf_counter()
        for count, (name, digests) in enumerate(records.fit(names, runtime, source), 1):
            fits.setdefault(name, {})[runtime] = digests
            seconds = time.perf_counter() - start
            print(f"\r\x1b[K{runtime}: {count} of {len(names)}, {seconds:.0f} s, {name}", end="", file=sys.stderr)
        print(file=sys.stderr)
    return fits


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (subprocess.CalledProcessError, RuntimeError) as error:
        sys.exit(str(error))

"""Shows that a refactoring moved nothing: `python -m tests.recorded check`. See the package's docstring."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from tests.recorded import records
from tests.recorded.records import RUNTIMES
from tests.recorded.settings import NAMES


def main() -> int:
    arguments = _arguments()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        print(f"There is no such setting: {', '.join(unknown)}. Known: {', '.join(NAMES)}.", file=sys.stderr)
        return 2
    names, runtimes = arguments.names or NAMES, [arguments.runtime] if arguments.runtime else RUNTIMES
    if arguments.action == "record":
        return _record(names, runtimes, arguments.at)
    return _check(names, runtimes) if arguments.action == "check" else _show(names)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.recorded", description=__doc__)
    parser.add_argument("action", choices=("record", "check", "show"))
    parser.add_argument("names", nargs="*", metavar="NAME", help="settings (default: all); `show` lists them")
    parser.add_argument("--runtime", choices=RUNTIMES, help="one runtime only, for a quick look (default: both)")
    parser.add_argument("--at", default="HEAD", metavar="REV", help="record: the commit whose src is recorded")
    return parser.parse_args()


def _record(names: list[str], runtimes: list[str], revision: str) -> int:
    """Record what is the same in all runtimes; 1 if something is not."""
    with records.source_at(revision) as (source, commit):
        fits = _fit(names, runtimes, source)
    same = {name: made[0] for name, made in fits.items() if all(one == made[0] for one in made)}
    records.write({name: {"commit": commit, **digests} for name, digests in same.items()})
    for name in sorted(set(names) - set(same)):
        print(f"{name}: not recorded, runtimes differ")
    print(f"{len(same)} settings recorded at {commit} for: {records.arithmetic()}")
    return 0 if len(same) == len(names) else 1


def _check(names: list[str], runtimes: list[str]) -> int:
    """Compare this tree with the record; 1 if anything differs or is not recorded."""
    kept = records.read()
    if not kept:
        print(records.REMEDY)
        return 1
    failed = 0
    for name, made in _fit(names, runtimes, records.ROOT / "src").items():
        verdict = _verdict(kept.get(name), made, runtimes)
        failed += verdict != "equal"
        print(f"{name}: {verdict}")
    print(f"{len(names) - failed} of {len(names)} equal")
    return 1 if failed else 0


def _verdict(kept: dict[str, str] | None, made: list[dict[str, str]], runtimes: list[str]) -> str:
    if kept is None:
        return "not recorded"
    differing = {
        f"differs ({runtime}): {', '.join(moved)}"
        for runtime, digests in zip(runtimes, made, strict=True)
        if (moved := [facet for facet, digest in digests.items() if digest != kept.get(facet)])
    }
    return "; ".join(sorted(differing)) or "equal"


def _show(names: list[str]) -> int:
    kept = records.read()
    print(records.arithmetic() if kept else records.REMEDY)
    for name in names:
        digests = kept.get(name)
        print(f"{name}: " + (" ".join(f"{key}={value[:10]}" for key, value in digests.items()) if digests else "–"))
    return 0


def _fit(names: list[str], runtimes: list[str], source: records.Path) -> dict[str, list[dict[str, str]]]:
    """Each setting's digests, in each runtime."""
    fits: dict[str, list[dict[str, str]]] = {name: [] for name in names}
    for runtime in runtimes:
        start = time.perf_counter()
        for count, (name, digests) in enumerate(records.fit(names, runtime, source), 1):
            fits[name].append(digests)
            seconds = time.perf_counter() - start
            print(f"\r\x1b[K{runtime}: {count} of {len(names)}, {seconds:.0f} s, {name}", end="", file=sys.stderr)
        print(file=sys.stderr)
    return fits


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (subprocess.CalledProcessError, RuntimeError) as error:
        sys.exit(str(error))

"""Carries out a Dockerfile's instructions in folders laid over this machine's own root, where no image can be had.

Every stage begins with this machine's system in place of its base image. Nothing is written to that: what a stage
writes is in a layer of its own, which goes with the block. Linux, as root.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = ("proc", "dev", "sys")
PATH = f"{sys.base_prefix}/bin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Stage:
    """A stage of a build.

    Attributes:
        root: its file system.
        arguments: of the build, which its commands see as variables.
        settings: variables of the image.
        user, folder, entry: as whom, where and by which words a container starts.
    """

    root: Path
    arguments: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    folder: str = "/"
    entry: list[str] = field(default_factory=list)

    def run(self, words: list[str], closed: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command, as containers do: with ``closed`` as the image's user, and nothing can be written but /tmp."""
        inside = f"cd {shlex.quote(self.folder)} && exec {shlex.join(words)}"
        root = shlex.quote(str(self.root))
        lock = f"mount -o remount,bind,ro {root} && mount -t tmpfs tmpfs {root}/tmp && " if closed else ""
        user = f"--userspec={self.user}" if closed else ""
        script = f"mount --rbind {root} {root} && {lock}exec chroot {user} {root} sh -c {shlex.quote(inside)}"
        kept = {key: value for key, value in os.environ.items() if key.startswith("PIP_")} | {"PATH": PATH}
        return subprocess.run(
            ["unshare", "--mount", "sh", "-c", script], env=kept | self.arguments | self.settings,
            capture_output=True, text=True, check=False,
        )  # fmt: skip


@contextmanager
def built(recipe: Path, context: Path, arguments: dict[str, str], place: Path) -> Iterator[Stage]:
    """The last stage of a recipe.

    Args:
        recipe: the Dockerfile.
        context: the folder that it copies from.
        arguments: in place of defaults of ARG.
        place: an empty folder for layers.
    """
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    with ExitStack() as mounts:
        for what, rest in instructions(recipe):
            if what == "FROM":
                name = rest.split(" AS ")[1] if " AS " in rest else str(len(stages))
                stage = stages[name] = Stage(mounts.enter_context(laid_over(place / name)))
            elif stage is None:
                assert what == "ARG", (what, rest)
            elif what == "ARG":
                key, _, value = rest.partition("=")
                stage.arguments[key] = arguments.get(key, value)
            elif what == "COPY":
                copy(rest, stage, stages, context)
            elif what == "RUN":
                done = stage.run(["sh", "-ec", rest])
                assert done.returncode == 0, f"{rest}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
            elif what == "ENV":
                stage.settings |= dict(pair.split("=", 1) for pair in shlex.split(rest))
            elif what == "USER":
                stage.user = rest
            elif what == "WORKDIR":
                stage.folder = rest
                (stage.root / rest.lstrip("/")).mkdir(exist_ok=True)
            elif what == "ENTRYPOINT":
                stage.entry = json.loads(rest)
            else:
                assert what == "CMD", (what, rest)
        assert stage is not None
        yield stage


def instructions(recipe: Path) -> Iterator[tuple[str, str]]:
    """Instructions and the rest of their lines."""
    text = re.sub(r"^\s*#.*\n", "", recipe.read_text(encoding="utf-8"), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            what, _, rest = line.partition(" ")
            yield what, rest.strip()


def copy(rest: str, stage: Stage, stages: dict[str, Stage], context: Path) -> None:
    """Carry out COPY. Of the context there is only what `.dockerignore` lets through."""
    words = shlex.split(rest)
    source = context
    if words[0].startswith("--from="):
        source = stages[words.pop(0).partition("=")[2]].root
    *names, to = words
    target = stage.root / to.lstrip("/")
    for name in names:
        found = source / name.lstrip("/")
        if to.endswith("/"):
            target.mkdir(parents=True, exist_ok=True)
        inner = target / found.name if to.endswith("/") and found.is_file() else target
        if found.is_dir():
            shutil.copytree(found, inner, dirs_exist_ok=True)
        else:
            shutil.copy(found, inner)


@contextmanager
def laid_over(place: Path) -> Iterator[Path]:
    """This machine's root, on which whatever is written stays in ``place``."""
    parts = {name: place / name for name in ("layer", "work", "root")}
    for part in parts.values():
        part.mkdir(parents=True)
    options = f"lowerdir=/,upperdir={parts['layer']},workdir={parts['work']}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(parts["root"])], check=True)
    try:
        for name in SYSTEM:
            subprocess.run(["mount", "--rbind", f"/{name}", str(parts["root"] / name)], check=True)
        for folder in [Path(sys.base_prefix), *Path(sys.base_prefix).parents][:-1]:
            (parts["root"] / str(folder).lstrip("/")).chmod(0o755)  # as a base image has it, for any user
        yield parts["root"]
    finally:
        subprocess.run(["umount", "-R", "-l", str(parts["root"])], check=True)

"""How HTML pages are made: of a template, with everything escaped, and of files that stand in them as they are."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("silosynth.evaluation", ""),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def page(template: str, **values: Any) -> str:
    """A template, filled in; a name that it lacks a value for is an error."""
    return _environment().get_template(template).render(values)


def source(name: str) -> str:
    """A file of a page, as it is; its line ends are those that browsers hash."""
    loader = _environment().loader
    assert loader is not None
    return loader.get_source(_environment(), name)[0].strip().replace("\r\n", "\n")

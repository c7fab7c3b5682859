"""A second device without a GPU: its tensors lie in this machine's memory, and nothing may mix them with the CPU's.

PyTorch lets a backend be written in Python (`torch.utils.backend_registration`). Here each tensor of the device "far"
holds one on the CPU, which computes: so results are those of the CPU, to the bit. What fails on CUDA fails here:
`Tensor.numpy`, and operations on tensors of both devices, but for those that CUDA allows (numbers, copies, places on
the CPU that index a tensor elsewhere). `check_generators` has the functions that it names refuse a generator of another
device than that on which they draw.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

CPU = torch.device("cpu")
_OPERATORS = torch.ops.aten
_COPIES = {_OPERATORS.copy_.default}
_PLACES = {_OPERATORS.index.Tensor, _OPERATORS.index_put.default, _OPERATORS.index_put_.default}


class Far(Tensor):
    """A tensor of the device, and the one on the CPU that it stands for.

    Attributes:
        computed: how many operations there have been on such tensors.
    """

    computed = 0
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, near: Tensor) -> Far:
        layout: dict[str, Any] = {"strides": near.stride(), "storage_offset": near.storage_offset()}
        made = Tensor._make_wrapper_subclass(cls, near.size(), **layout, dtype=near.dtype, device=device())
        made.near = near
        return made

    def tolist(self) -> Any:
        """A list may be made of tensors on any device."""
        return self.near.tolist()

    @classmethod
    def __torch_dispatch__(cls, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        Far.computed += 1
        kwargs = kwargs or {}
        _refuse_mixtures(operator, args, kwargs)
        there = kwargs.get("device") in (None, device())
        on_cpu = kwargs | ({"device": CPU} if "device" in kwargs else {})
        made = operator(*_near(args), **_near(on_cpu))
        if operator in _COPIES:
            return args[0]
        return return_and_correct_aliasing(operator, args, kwargs, tree_map_only(Tensor, Far, made)) if there else made


DRAWING = ("rand", "randn", "randint", "randperm", "multinomial", "bernoulli", "normal")
DRAWING_IN_PLACE = ("normal_", "uniform_", "exponential_", "bernoulli_", "random_")


def check_generators(patch: Callable[[Any, str, Any], None]) -> None:
    """Have `DRAWING` and `DRAWING_IN_PLACE` refuse, as CUDA does, a generator of a device that they do not draw on."""
    for owner, names in ((torch, DRAWING), (Tensor, DRAWING_IN_PLACE)):
        for name in names:
            patch(owner, name, _checked(getattr(owner, name)))


def _checked(draw: Callable[..., Any]) -> Callable[..., Any]:
    def drawn(*args: Any, generator: torch.Generator | None = None, **how: Any) -> Any:
        first = args[0] if args and isinstance(args[0], Tensor) else None
        where = first.device if first is not None else torch.device(how.get("device") or CPU)
        if generator is not None and generator.device.type != where.type:
            raise RuntimeError(f"Expected a {where.type!r} generator, but found one of {generator.device.type!r}")
        return draw(*args, generator=generator, **how)

    return drawn


class FarGenerator(torch.Generator):
    """Random numbers for the device: those of the CPU."""

    @property
    def device(self) -> torch.device:
        """Where it says that it is."""
        return device()


@functools.cache
def device() -> torch.device:
    """The device, which is made when it is first asked for, for as long as the process lives."""
    _setup_privateuseone_for_python_backend("far")
    library = torch.library.Library("aten", "IMPL")
    for name, make in {"empty.memory_format": torch.empty, "empty_strided": torch.empty_strided}.items():
        library.impl(name, functools.partial(_empty, make), "PrivateUse1")
    library.impl("_copy_from", lambda source, goal, _=False: _near(goal).copy_(_near(source)), "PrivateUse1")
    _KEPT.append(library)
    return torch.device("far", 0)


_KEPT: list[torch.library.Library] = []


def _empty(make: Any, *shape: Any, dtype: torch.dtype | None = None, **_: Any) -> Far:
    return Far(make(*shape, dtype=dtype))


def _near(values: Any) -> Any:
    return tree_map_only(Far, lambda tensor: tensor.near, values)


def _refuse_mixtures(operator: Any, args: Any, kwargs: Any) -> None:
    tensors = [value for value in tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
    near = [tensor for tensor in tensors if not isinstance(tensor, Far) and tensor.dim()]
    allowed = operator in _COPIES or (operator in _PLACES and isinstance(args[0], Far))
    if near and not allowed:
        raise RuntimeError(f"{operator}: a tensor {tuple(near[0].shape)} is on the CPU, and another is not")

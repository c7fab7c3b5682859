"""Multinomial diffusion of levels, all columns at once (Hoogeboom et al. 2021, section 4; TabDDPM, section 3).

Noise replaces a level by a uniformly drawn one of its column. Of a level at time s, what is left at t > s is
abar_t / abar_s. The last time before the data is "clean": abar is 1 there, and it is written s = -1.

====================================  ==========================================
Hoogeboom et al.                      here
====================================  ==========================================
eq. (13) q(x_t | x_0)                 `noised`, `_log_mixed`
eq. (15) q(x_t-1 | x_t, x_0)          `log_posterior`
eq. (16) p(x_t-1 | x_t)               the same with the predicted probabilities of x_0
section 4, KL and L_0                 `divergence`
====================================  ==========================================

Shapes: B rows, C columns, K levels of all columns. Probabilities are logarithms, (B, K), summing to one per column.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_LEAST = -60.0  # stands for the logarithm of zero, so that zero times it is zero


class Multinomial(nn.Module):
    """The noising of levels by a schedule, and its reverse.

    Args:
        widths: number of levels of each of the C columns.
        alpha_bar: (T,) share of levels that are still untouched after each step.
    """

    def __init__(self, widths: tuple[int, ...], alpha_bar: Tensor) -> None:
        super().__init__()
        self.widths, self.steps = widths, len(alpha_bar)
        sizes = torch.tensor(widths, dtype=torch.int64)
        column_of = torch.repeat_interleave(torch.arange(len(widths)), sizes)
        member = F.one_hot(column_of, len(widths)) if widths else torch.zeros(0, 0)
        self.sizes: Tensor
        self.starts: Tensor
        self.column_of: Tensor
        self.member_KC: Tensor
        self.bar: Tensor
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("starts", sizes.cumsum(0) - sizes, persistent=False)
        self.register_buffer("column_of", column_of, persistent=False)
        self.register_buffer("member_KC", member.float(), persistent=False)
        self.register_buffer("bar", F.pad(alpha_bar.double(), (0, 1), value=1.0), persistent=False)  # [-1] is clean

    def noised(self, levels_BC: Tensor, t_B: Tensor, generator: torch.Generator) -> Tensor:
        """Levels (B, C) at times t, from clean ones."""
        kept = torch.rand(levels_BC.shape, generator=generator, device=levels_BC.device) < self.bar[t_B][:, None]
        return torch.where(kept, levels_BC, self.uniform(len(levels_BC), generator))

    def uniform(self, rows: int, generator: torch.Generator) -> Tensor:
        """Levels (B, C) of nothing but noise."""
        shares = torch.rand(rows, len(self.widths), generator=generator, device=self.sizes.device)
        return torch.minimum((shares * self.sizes).long(), self.sizes - 1)

    def log_posterior(self, levels_BC: Tensor, log_clean_BK: Tensor, t_B: Tensor, s_B: Tensor) -> Tensor:
        """Law of the levels at times s < t, given those at t and the law of the clean ones."""
        left = (self.bar[t_B] / self.bar[s_B])[:, None]
        return self.normalised(
            self._log_mixed(self.log_one_hot(levels_BC), left) + self._log_mixed(log_clean_BK, self.bar[s_B][:, None])
        )

    def divergence(self, logits_BK: Tensor, clean_BC: Tensor, noisy_BC: Tensor, t_B: Tensor) -> Tensor:
        """KL divergence (B,), summed over columns, of the predicted step from the true one; at t = 0 cross-entropy."""
        right = self.log_posterior(noisy_BC, self.log_one_hot(clean_BC), t_B, t_B - 1)
        guess = self.log_posterior(noisy_BC, self.normalised(logits_BK), t_B, t_B - 1)
        return (right.exp() * (right - guess)).sum(dim=1)

    def normalised(self, logits_BK: Tensor) -> Tensor:
        """Log-probabilities from logits, within each column."""
        if not self.widths:
            return logits_BK
        with torch.no_grad():
            top = logits_BK.new_full((len(logits_BK), len(self.widths)), -torch.inf)
            top = top.scatter_reduce(1, self.column_of.expand_as(logits_BK), logits_BK, "amax")[:, self.column_of]
        centred = logits_BK - top
        return centred - ((centred.exp() @ self.member_KC).log())[:, self.column_of]

    def log_one_hot(self, levels_BC: Tensor) -> Tensor:
        """The law (B, K) that is certain of these levels."""
        law = torch.full((len(levels_BC), len(self.column_of)), _LEAST, device=levels_BC.device)
        return law.scatter_(1, levels_BC + self.starts, 0.0)

    def _log_mixed(self, law_BK: Tensor, left_B1: Tensor) -> Tensor:
        """``left`` parts of a law and the rest uniform."""
        uniform = ((1 - left_B1) / self.sizes[self.column_of]).clamp_min(1e-300).log().clamp_min(_LEAST)
        return torch.logaddexp(law_BK + left_B1.log().to(law_BK.dtype), uniform.to(law_BK.dtype))

"""Multinomial diffusion against explicit enumeration of Bayes' rule over levels."""

from __future__ import annotations

import itertools

import pytest
import torch

from silosynth.core.streams import Streams
from silosynth.models.gaussian import gaussian_path
from silosynth.models.tabddpm import Multinomial

WIDTHS, STEPS = (2, 5, 3), 12
BAR = gaussian_path(STEPS, "cosine", "noise").alpha_bar


def generator(*path):
    return Streams(0).child(*path).torch()


def moved(width, left):
    """Transition matrix (from, to) after which ``left`` of a level is untouched."""
    return left * torch.eye(width, dtype=torch.float64) + (1 - left) / width


def bar(t):
    return float(BAR[t]) if t >= 0 else 1.0


def bayes(width, noisy, clean_law, t, s):
    """p(x_s | x_t) by summing over clean levels what eq. (15) says of each: all of it by loops."""
    to_s, on_to_t = moved(width, bar(s)), moved(width, bar(t) / bar(s))
    law = [sum(float(clean_law[x0]) * to_s[x0, xs] for x0 in range(width)) * on_to_t[xs, noisy] for xs in range(width)]
    return torch.tensor(law) / sum(law)


@pytest.mark.parametrize(("t", "s"), [(0, -1), (1, 0), (7, 6), (11, 10), (11, 3), (6, -1)])
def test_the_posterior_is_that_of_bayes(t, s):
    diffusion = Multinomial(WIDTHS, BAR)
    cases = torch.tensor(list(itertools.product(*map(range, WIDTHS))))
    logits = torch.randn(len(cases), sum(WIDTHS), generator=generator("logits"))
    t_B, s_B = torch.full((len(cases),), t), torch.full((len(cases),), s)
    fast = diffusion.log_posterior(cases, diffusion.normalised(logits), t_B, s_B).exp()
    for row, levels in enumerate(cases.tolist()):
        clean = [part.softmax(dim=0) for part in logits[row].split(list(WIDTHS))]
        slow = torch.cat([bayes(w, x, law, t, s) for w, x, law in zip(WIDTHS, levels, clean, strict=True)])
        torch.testing.assert_close(fast[row].double(), slow.double(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("t", [0, 1, 6, 11])
def test_the_divergence_is_that_of_bayes(t):
    diffusion = Multinomial(WIDTHS, BAR)
    draw = generator("divergence")
    clean = torch.stack([torch.randint(width, (40,), generator=draw) for width in WIDTHS], dim=1)
    t_B = torch.full((40,), t)
    noisy = diffusion.noised(clean, t_B, draw)
    if t == 0:
        noisy = clean
    logits = torch.randn(40, sum(WIDTHS), generator=draw)
    fast = diffusion.divergence(logits, clean, noisy, t_B)
    for row in range(40):
        slow = 0.0
        for c, (width, part) in enumerate(zip(WIDTHS, logits[row].split(list(WIDTHS)), strict=True)):
            certain = torch.eye(width)[clean[row, c]]
            right = bayes(width, int(noisy[row, c]), certain, t, t - 1)
            guess = bayes(width, int(noisy[row, c]), part.softmax(dim=0), t, t - 1)
            slow += float(torch.where(right > 0, right * (right / guess).log(), 0.0).sum())
        assert float(fast[row]) == pytest.approx(slow, abs=2e-5, rel=1e-3)


def test_noised_levels_have_their_law():
    diffusion = Multinomial((4,), BAR)
    clean, t = torch.full((80_000, 1), 2), 5
    noisy = diffusion.noised(clean, torch.full((80_000,), t), generator("noise"))
    shares = torch.bincount(noisy[:, 0], minlength=4) / 80_000
    torch.testing.assert_close(shares.double(), moved(4, bar(t))[2], atol=0.01, rtol=0)


@pytest.mark.parametrize("kept", [list(range(STEPS - 1, -1, -1)), [11, 7, 2, 0]], ids=["all", "some"])
def test_steps_back_from_noise_arrive_at_the_law_that_is_believed(kept):
    """Bayes' rule with the clean levels' own law is exact, so the last step has it whichever times are visited."""
    diffusion, draw, rows = Multinomial((3,), BAR), generator("walk"), 60_000
    law = torch.tensor([0.7, 0.25, 0.05])
    levels = diffusion.uniform(rows, draw)
    for t, s in itertools.pairwise([*kept, -1]):
        t_B, s_B = torch.full((rows,), t), torch.full((rows,), s)
        believed = diffusion.log_posterior(levels, law.log().expand(rows, -1), t_B, s_B)
        levels = torch.multinomial(believed.exp(), 1, generator=draw)
    shares = torch.bincount(levels[:, 0], minlength=3) / rows
    torch.testing.assert_close(shares, law, atol=0.012, rtol=0)


def test_no_levels_at_all():
    diffusion = Multinomial((), BAR)
    none = torch.zeros(4, 0, dtype=torch.int64)
    t_B = torch.tensor([0, 3, 5, 11])
    assert diffusion.noised(none, t_B, generator("noise")).shape == (4, 0)
    assert diffusion.log_posterior(none, torch.zeros(4, 0), t_B, t_B - 1).shape == (4, 0)

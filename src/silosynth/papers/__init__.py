"""Reproductions of papers, a file for each published comparison.

Nothing else is imported here: ``silosynth bench`` lists what there is without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, tuple[str, str]] = {  # name -> module in this package, what it is
    "partitions": ("vtgan_divisions", "VT-GAN with nine partitions of its networks, and the central GAN (figure 7)."),
    "importance": ("vtgan_divisions", "VT-GAN with columns divided by their importance (figures 9 and 10)."),
    "silos": ("vtgan_divisions", "VT-GAN with two to five silos and two sizes of generator (figures 11 and 12)."),
    "reconstruction": ("vtgan_figures4_5", "Attacks with what VT-GAN's parties are sent (figures 4 and 5, and more)."),
    "vtgan-central": ("central", "VT-GAN beside the central GAN of the same sizes (section 4.2)."),
    "copies": ("gdts_tables1_2", "GDTS with a full copy of the table in every silo (table I and figure 5)."),
    "odd": ("gdts_tables1_2", "GDTS with a silo that repeats a single row (table II and figure 6)."),
    "total-difference": ("vflgan_table1", "VFLGAN and four rivals on five tables (table 1 and figure 7)."),
    "total-difference-floor": ("vflgan_table1", "What equally good tables score in total-difference."),
    "digits": ("vflgan_figures5_6", "VFLGAN on halves of handwritten digits (figures 5 and 6)."),
    "assd": ("vflgan_table3", "Membership attacks by shadow models on a few hundred wines (VFLGAN, table 3)."),
    "latents": ("tabvfl", "TabVFL's latents and its rivals', judged by six learners (figure 5, table 6.1)."),
    "failures": ("tabvfl", "TabVFL with guests that fail in training (figure 6 and table III)."),
    "latent-cost": ("tabvfl", "Seconds, bytes and memory of TabVFL's designs (table IV)."),
    "nine-tables": ("silofuse", "SiloFuse on nine tables beside its published row (tables III and IV)."),
    "inversion": ("silofuse", "What SiloFuse's coordinator infers from latents when it knows some rows."),
    "joint-latents": ("silofuse", "SiloFuse with latents per silo, beside joint latents of all silos."),
    "central": ("central", "The central baselines beside each other: fidelity, utility and time."),
}  # fmt: skip

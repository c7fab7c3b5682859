"""Reproductions of papers, one file per published table or figure.

Nothing else is imported here: ``silosynth bench`` lists what there is without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, tuple[str, str]] = {  # name -> module in this package, what it is
    "partitions": ("vtgan_figure7", "VT-GAN with nine partitions of its networks, and the central GAN (figure 7)."),
    "importance": ("vtgan_figures9_10", "VT-GAN with columns divided by their importance (figures 9 and 10)."),
    "silos": ("vtgan_figures11_12", "VT-GAN with two to five silos and two sizes of generator (figures 11 and 12)."),
    "reconstruction": ("vtgan_figures4_5", "Attacks with what VT-GAN's parties are sent (figures 4 and 5, and more)."),
    "vtgan-central": ("vtgan_section4_2", "VT-GAN beside the central GAN of the same sizes (section 4.2)."),
    "copies": ("gdts_tables1_2", "GDTS with a full copy of the table in every silo (table I and figure 5)."),
    "odd": ("gdts_tables1_2", "GDTS with a silo that repeats a single row (table II and figure 6)."),
    "total-difference": ("vflgan_table1", "VFLGAN and four rivals on five tables (table 1 and figure 7)."),
    "total-difference-floor": ("vflgan_table1", "What equally good tables score in total-difference."),
    "digits": ("vflgan_figures5_6", "VFLGAN on halves of handwritten digits (figures 5 and 6)."),
    "assd": ("vflgan_table3", "Membership attacks by shadow models on a few hundred wines (VFLGAN, table 3)."),
    "latents": ("tabvfl_figure5", "TabVFL's latents and its rivals', judged by six learners (figure 5, table 6.1)."),
    "failures": ("tabvfl_figure6", "TabVFL with guests that fail in training (figure 6 and table III)."),
    "latent-cost": ("tabvfl_table4", "Seconds, bytes and memory of TabVFL's designs (table IV)."),
    "nine-tables": ("silofuse_tables3_4", "SiloFuse on nine tables beside its published row (tables III and IV)."),
    "inversion": ("silofuse_inversion", "What SiloFuse's coordinator infers from latents when it knows some rows."),
    "joint-latents": ("silofuse_joint_latents", "SiloFuse with latents per silo, beside joint latents of all silos."),
    "central": ("central_baselines", "The central baselines beside each other: fidelity, utility and time."),
}  # fmt: skip

"""Reproductions of papers, one file per published table or figure, or for several that share their trainings.

Nothing else is imported here: ``silosynth papers`` lists what there is without loading it.
"""

from __future__ import annotations

from collections.abc import Mapping

EXPERIMENTS: Mapping[str, str] = {  # what files of results call it -> module in this package
    "partitions": "vtgan_figure7", "importance": "vtgan_figures9_10", "silos": "vtgan_figures11_12",
    "budgets": "vtgan_figures13_14",
    "reconstruction": "vtgan_figures4_5", "vtgan-central": "vtgan_section4_2",
    "copies": "gdts_tables1_2", "odd": "gdts_tables1_2",
    "widths": "silofuse_table2", "associations": "silofuse_table5", "classes": "tabvfl_table2",
    "records": "vflgan_tables2_4", "private-digits": "vflgan_figure8", "fine-tuning": "tabvfl_figures6_1_to_6_3",
    "total-difference": "vflgan_table1", "total-difference-floor": "vflgan_table1",
    "quality-as-number": "vflgan_table1", "distances": "vflgan_table1",
    "digits": "vflgan_figures5_6", "assd": "vflgan_table3",
    "latents": "tabvfl_figure5", "failures": "tabvfl_figure6", "latent-cost": "tabvfl_table4",
    "nine-tables": "silofuse_tables3_4", "robustness": "silofuse_tables3_4",
    "privacy": "silofuse_tables6_7", "privacy-by-steps": "silofuse_tables6_7",
    "bytes": "silofuse_figure10", "inversion": "silofuse_inversion",
    "joint-latents": "silofuse_joint_latents", "central": "central_baselines", "ends": "ends",
}  # fmt: skip

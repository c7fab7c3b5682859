"""SiloFuse (ICDE 2024): `stacked` is the algorithm, `end_to_end` its jointly trained baselines E2E and E2EDistr.

`coder` is a silo's autoencoder, `latent` the coordinator's generative model; both files serve both trainings.
"""

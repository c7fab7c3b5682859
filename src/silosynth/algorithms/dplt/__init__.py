"""DPLT: a latent tree over attributes that silos divide among themselves."""

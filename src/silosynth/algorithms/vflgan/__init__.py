"""VFLGAN, VFLGAN-base, VertiGAN, and WGAN-GP, which is VertiGAN with a single silo."""

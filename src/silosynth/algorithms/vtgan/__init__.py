"""VT-GAN."""

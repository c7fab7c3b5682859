"""VT-GAN: what is said and the coordinator's side, its networks (`tops`), and a silo's side (`silo`)."""

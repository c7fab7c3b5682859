"""VT-GAN. Options: `messages`. The coordinator: `conversation`, `tops`. A silo: `silo`, `bottoms`, `numbers`."""

"""VFLGAN and VertiGAN. Options and messages: `messages`. The coordinator: `conversation`, `shared`; `vertigan` for both
sides of VertiGAN. A silo: `silo`, `split`, `local`, `draws`."""

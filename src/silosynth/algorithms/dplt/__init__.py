"""DPLT. Options: `messages`. Coordinator: `conversation`, `budget`, `tree`. A silo: `silo`, `latents`, `products`."""

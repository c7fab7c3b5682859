"""GDTS. Options: `messages`. Coordinator: `conversation`, `md`, `weights`. A silo: `silo`, `summaries`, `models`."""

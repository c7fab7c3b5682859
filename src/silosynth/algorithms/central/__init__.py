"""The central baselines: one conversation, and the options of each of them."""

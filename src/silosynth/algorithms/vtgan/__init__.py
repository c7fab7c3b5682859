"""VT-GAN: `messages` and options, `conversation` (the coordinator) and `silo`, and their networks `tops`, `bottoms`."""

"""TabVFL: one latent representation of rows whose columns are in several silos."""

"""Noised tables of two columns each, whichever silos hold them: MST, a tree of them."""

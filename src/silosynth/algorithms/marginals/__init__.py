"""Noised tables of two columns each, whichever silos hold them, and a model of them: MST and AIM."""

"""MST: a tree of noised tables of two columns each, whichever silos hold them."""

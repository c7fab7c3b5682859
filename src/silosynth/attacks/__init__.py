"""Attacks on generators and on the tables they make: what could be learnt about the people in the training table.

An attack takes plain callables: ``fit(train, seed) -> synthetic`` for those that train generators themselves, or the
tables alone. Every figure is a `Score` with its guessing rate and its interval.
"""

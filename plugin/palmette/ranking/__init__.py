"""Ranking: a method's score, the best sentence and shared words become one order and one probability."""

"""Encoders that torch computes from the files of a sentence-transformers model."""

"""Words: tokens, BM25 over postings, and how they are combined with a method."""

"""Training data from what users have: an LLM's questions, a reranker's judgement, people's feedback."""

"""Training data from what users have: a language model's questions, people's feedback."""

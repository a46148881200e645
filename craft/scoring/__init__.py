"""Scores of a model's answers: `scorer` where a task head answers (with `encoding`), `words` where the model answers in words
(with `generation`)."""

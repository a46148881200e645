"""Scores of a model's answers.

`scorer` says what a run asks of a scorer, and picks one: `head_scorer` where a task head answers (with `encoding`), `words`
where the model answers in words (with `generation`).
"""

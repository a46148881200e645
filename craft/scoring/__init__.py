"""Scores of a model's answers.

`predictions` says what a run asks of a scorer, and `choose` picks one: `head_scorer` where a task head answers (with
`encoding`), `words` where the model answers in words (with `generation`).
"""

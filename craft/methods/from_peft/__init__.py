"""The rows whose tuner PEFT has: named ones with their papers' defaults, and `any_type` for every type of the installed PEFT.

`installed` says what the installed PEFT has, `building` puts one of its types on a model.
"""

"""What a model's answers are worth: encoding, evaluation, generation and answers in words."""

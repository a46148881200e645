"""From results to a judgement: front, knee, probabilities, the answer, and the experiment that would settle more."""

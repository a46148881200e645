"""From scores to results: summaries with intervals, dominance, the front."""

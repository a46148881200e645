"""What scores amount to: summaries with intervals, dominance, the front."""

"""From scores to results: summaries with intervals, the columns of their table, the cost of tuning."""

"""What a model can do: held-out loss, answers and their scores, with intervals, and gates that are decided by them."""

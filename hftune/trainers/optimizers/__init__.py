"""Parameter groups, Muon and learning-rate schedules."""

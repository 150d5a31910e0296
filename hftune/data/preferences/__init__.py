"""Pairs, labelled answers, answers in steps and prompts to token ids: what RM, DPO, KTO and RL read."""

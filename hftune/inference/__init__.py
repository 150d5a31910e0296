"""Models that answer: loading, prompts, generation, reading of answers, judges; under ask, chat, sample, evaluate."""

"""Names of other tools: what each means, what becomes of it here, and how its values are translated."""

"""Chat templates: conversations as text, where the assistant speaks in it, and turn tokens that contents spell."""

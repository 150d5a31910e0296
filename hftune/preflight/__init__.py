"""What cannot work is refused here, before a model loads, all problems in one message."""

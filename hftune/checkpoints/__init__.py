"""What an output folder says of itself."""

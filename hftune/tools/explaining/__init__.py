"""What an argument means, under any tool's name, and the pages of documentation that list them all."""

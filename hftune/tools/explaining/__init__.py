"""What an argument means, under any tool's name, what an error means, and the pages that list them all."""

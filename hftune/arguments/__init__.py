"""What a user may ask for: dataclasses by topic, on the field's and TRL's names, and the parser that reads them."""

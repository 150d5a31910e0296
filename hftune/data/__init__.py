"""Data, one way through: files -> rows -> schema -> messages -> chat template -> token ids and labels -> collator."""

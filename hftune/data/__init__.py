"""Data, one way through: files -> rows -> messages -> text and spans -> token ids and labels -> packed rows -> batches.

Rooms, each of which imports only those before it: `readers` (files to rows), `records` (rows to messages), `templates`
(messages to text and spans), `storage` (cache and folders), `tokenizing` (text to ids and labels), `packing` (rows of
several documents), `batches` (collators), `preferences` (pairs, labels, steps, prompts), `corpus` (sources, mixtures,
tokenised folders, streams). At the top is what scripts call: `splits` (records), `stream_splits` (`--streaming`),
`folder_splits` (`--tokenized_dir`), and `preview`.
"""

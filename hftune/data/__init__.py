"""Data, one way through: files -> rows -> messages -> text and spans -> token ids and labels -> packed rows -> batches.

Rooms, each of which imports only those before it: `readers` (files to rows), `records` (rows to messages), `templates`
(messages to text and spans), `storage` (cache and folders), `tokenizing` (text to ids and labels), `packing` (rows of
several documents), `batches` (collators), `preferences` (pairs, labels, steps, prompts), `corpus` (blocks and streams
of pre-training). Between tokenizing and packing stand `sources` (a file, folder or Hub name, tokenised) and `mixture`
(how several are drawn). At the top is what scripts call: `encoders` (what a stage makes of its records) and `splits`,
which imports the rest for the runs that ask for it: `stream_splits` (`--streaming`), `folder_splits` and
`tokenized_folder` (`--tokenized_dir`), `generated` (`--dummy_data`). `preview` shows what they give.
"""

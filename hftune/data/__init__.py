"""Data, one way through: files -> rows -> messages -> text and spans -> token ids and labels -> packed rows -> batches.

`specs`, `hub`, `files` and its readers (files to rows); `formats` to `compared_answers` (rows to messages); `rendering`
to `mask` (messages to text and spans); `encode...` (text to ids and labels); `storage` (the cache); `sources` (a file,
folder or Hub name, tokenised); `packing`; `mixture` (how several are drawn); `collators`. Scripts call `splits`, which
imports `endless` (streams, and blocks of pre-training) for the runs that ask for it; `preview` shows
what they give.
"""

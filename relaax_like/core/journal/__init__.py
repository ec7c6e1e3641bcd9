"""Records on disk, in the order in which they were written: the journal of a folder.

`Journal` appends them, `JournalReader` reads and checks them, `check_journal` reports damage, and
`cut_journal` moves the damaged record and everything after it away. The head (`JournalHead`) shows
whether the end is missing.
"""

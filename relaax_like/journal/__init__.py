"""Records on disk, in the order in which they were written: the journal of a folder.

`Journal` appends them, `JournalReader` reads and checks them, `check_journal` reports damage.
"""

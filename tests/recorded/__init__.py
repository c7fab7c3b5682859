"""Digests of what every algorithm trains and samples at a tiny size, to show that a refactoring moved nothing.

    python -m tests.recorded check [NAME…] [--runtime inprocess]   compare this tree's src with the record
    python -m tests.recorded record [NAME…] [--at REV]             record src at a commit (default: HEAD)
    python -m tests.recorded show [NAME…]                          list settings and what is recorded

Without names, runtime "processes" fits fewer settings, since every silo's process takes seconds to start: see
`settings.APART`. A quick look takes `--runtime inprocess`.

The bytes of a training depend on the processor and on versions of libraries: `digests.json` keeps a record for each
such combination. Where there is none for this machine, `record --at REV` makes one from a commit that is known to be
right: this package's settings are then fitted with that commit's src. A change that is meant to move bytes records
anew, in the next commit, and says why.
"""

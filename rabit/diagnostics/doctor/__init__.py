"""The doctor: why a job hangs, is slow or has failed, from one look at its ranks and a table of faults."""

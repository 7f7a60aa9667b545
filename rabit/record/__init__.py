"""The record of a rank: a file of fixed size that the engine writes, and that outlives the process."""

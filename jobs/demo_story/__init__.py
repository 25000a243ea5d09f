"""The parts of `make demo`: goods, their senders and consumers, the two Spark processes, and the final checks."""

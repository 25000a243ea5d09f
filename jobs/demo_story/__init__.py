"""The parts of `make demo`: goods and who sends them, consumers, the two Spark processes, and the reckoning."""

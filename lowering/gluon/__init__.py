"""A kernel in Gluon: its text and its launch."""

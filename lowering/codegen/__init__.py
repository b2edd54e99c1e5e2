"""Terms as text over tiles, for Triton and Gluon alike."""

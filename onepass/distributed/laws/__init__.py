"""What is proved of a function before ranks share it: where it is cut, that states merge, and that heads are apart."""

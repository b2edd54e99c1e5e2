"""What a program is: terms over named dimensions, operations and their meanings, sizes, printing."""

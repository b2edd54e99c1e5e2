"""What a kernel with a schedule takes: bytes, work, time and its bound; a roofline, held to measured tables."""
